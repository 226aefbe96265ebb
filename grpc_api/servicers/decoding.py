"""Schedules the reads that decode records, and bounds the inflated batches that they keep between messages.

A batch of a few kilobytes may inflate to many megabytes and fill a thousand messages. Instead of inflating it again for each
message, a read keeps its decoder, with the inflated batch, until the batch has been sent.

Invariants: one read at a time decodes, for one message, in order of arrival. The turn of a cancelled read lasts until its
thread has ended. Kept batches hold at most `limits.INFLATED_BYTES`. A batch is dropped for another only KEPT_S after it was
inflated. A read without room for its batch waits before it inflates that batch again. So any number of callers causes at most
about INFLATED_BYTES of repeated inflation per KEPT_S. Reads of small batches never wait for that room.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from grpc_api import limits

#: A batch of at most this many inflated bytes is inflated again for each message, because it fits few messages.
SMALL_BYTES = 2 << 20
#: Seconds for which a kept batch is safe from reads that wait for its room.
KEPT_S = 1.0

Result = TypeVar("Result")


class Kept:
    """Room for one inflated batch of `size` bytes, and the decoder that holds the batch. `is_held` is True until the batch is
    dropped, and `is_used` while a turn decodes it. `since` is the loop's time when it got the room."""

    __slots__ = ("decoder", "is_held", "is_used", "since", "size")

    def __init__(self, size: int, since: float) -> None:
        self.decoder: Any = None
        self.size = size
        self.since = since
        self.is_held = True
        self.is_used = False


class Decoding:
    """Shared by all reads of a node. Used on one event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = asyncio.Lock()
        self._freed = asyncio.Event()
        self._kept: list[Kept] = []

    @property
    def kept_bytes(self) -> int:
        return sum(each.size for each in self._kept)

    async def turn(self, work: Callable[[threading.Event], Result]) -> Result:
        """The result of `work`, which runs in a thread. The event that `work` gets is set if the caller is cancelled: the
        result is then dropped, and the next turn begins when the thread ends."""
        await self._turn.acquire()
        stopped = threading.Event()
        try:
            running = asyncio.get_running_loop().run_in_executor(None, work, stopped)
        except BaseException:
            self._turn.release()
            raise
        running.add_done_callback(self._end_turn)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stopped.set()
            raise

    def _end_turn(self, running: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not running.cancelled():
            running.exception()  # retrieved even if the read was cancelled, or asyncio would log it

    def try_keep(self, size: int) -> Kept | None:
        """Room for a batch of `size` bytes; None if there is none, or other reads wait for it. `release` returns it."""
        return None if self._waiting.locked() else self._take(size)

    async def keep(self, size: int) -> Kept:
        """As `try_keep`, but waits for the room, in order of arrival."""
        size = min(size, limits.INFLATED_BYTES)
        async with self._waiting:
            while (kept := self._take(size)) is None:
                await self._room_may_have_changed()
            return kept

    async def _room_may_have_changed(self) -> None:
        """Waits until room is freed, or the next unused batch may be dropped."""
        self._freed.clear()
        now = asyncio.get_running_loop().time()
        left_s = [each.since + KEPT_S - now for each in self._kept if not each.is_used]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.001, min(left_s, default=KEPT_S))):
                await self._freed.wait()

    def _take(self, size: int) -> Kept | None:
        now = asyncio.get_running_loop().time()
        free = limits.INFLATED_BYTES - self.kept_bytes
        past = [each for each in self._kept if not each.is_used and now - each.since >= KEPT_S]
        if free + sum(each.size for each in past) < size:
            return None
        for each in past:
            if free >= size:
                break
            self.release(each)
            free += each.size
        kept = Kept(size, now)
        self._kept.append(kept)
        return kept

    def resize(self, kept: Kept, size: int) -> bool:
        """Counts `size` bytes for the batch from now on. Returns False, without a change, if the batch was dropped or does not
        fit."""
        if not kept.is_held or self.kept_bytes - kept.size + size > limits.INFLATED_BYTES:
            return False
        if size < kept.size:
            self._freed.set()
        kept.size = size
        return True

    def release(self, kept: Kept) -> None:
        """Drops the batch. A second call does nothing."""
        kept.decoder = None
        if kept.is_held:
            kept.is_held = False
            self._kept.remove(kept)
            self._freed.set()
