"""The three offset checkpoints of a data directory: read at start, and written only here.

A write syncs a file and its directory. It runs in a thread, because a sync may take long on a busy disk. Invariants: one write
at a time; memory equals the disk, except while a write is under way.

Cancelling the caller does not stop a write: each write runs to its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, read_offsets, write_offsets
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

NAMES = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS)


class OffsetCheckpoints:
    """The checkpoints of one data directory, by name. Raises StorageError if the disk refuses a write."""

    def __init__(self, directory: str, files: Files) -> None:
        """Damaged files count as missing; `damaged` names them."""
        self._directory = directory
        self._files = files
        self.damaged: set[str] = set()
        self._known: dict[str, Offsets] = {name: self._read(name) for name in NAMES}
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")

    def _read(self, name: str) -> Offsets:
        try:
            return read_offsets(self.path(name))
        except StorageError as error:
            events.error(log, "checkpoint.unusable", path=self.path(name), error=error)
            self.damaged.add(name)
            return {}

    def known(self, name: str) -> Offsets:
        """The offsets on disk."""
        return self._known[name]

    @property
    def writing(self) -> bool:
        """Whether the disk may soon hold something other than `known`."""
        return self._turn.locked()

    async def write(self, name: str, wanted: Callable[[Offsets], Awaitable[Offsets]]) -> None:
        """Durably replaces the known offsets by the result of `wanted`, unless they are equal. `wanted` is called when earlier
        writes are done, and no other write begins before this one ends. Raises StorageError if the disk refuses; the old
        content then stays."""
        writing = asyncio.ensure_future(self._write(name, wanted))
        writing.add_done_callback(_retrieve_error)
        await asyncio.shield(writing)

    async def _write(self, name: str, wanted: Callable[[Offsets], Awaitable[Offsets]]) -> None:
        async with self._turn:
            offsets = await wanted(self._known[name])
            if offsets != self._known[name]:
                run = asyncio.get_running_loop().run_in_executor
                await run(self._thread, write_offsets, self._files, self.path(name), offsets)
                self._known[name] = offsets

    def write_now(self, name: str, offsets: Offsets) -> None:
        """Writes at once. Blocking; called at the start, before any other writer."""
        if offsets != self._known[name]:
            write_offsets(self._files, self.path(name), offsets)
            self._known[name] = offsets

    async def close(self) -> None:
        """Waits for writes under way. Nothing can be written afterwards."""
        async with self._turn:
            self._thread.shutdown()

    def path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _retrieve_error(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()  # marks it as retrieved: the caller may have been cancelled
