"""What is at hand of one partition's tiered range, without waiting: entries, sidecars, bytes. Or `Missing`, which can bring it.

Every method either answers from memory and the chunk cache in this turn of the loop, or raises `Missing`. So a read is
written once, as plain code, and is tried again as each missing thing arrives (`complete`).

Invariant: bytes come from verified chunks only.
"""

from __future__ import annotations

import asyncio
import bisect
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from storage_tiers.cold.manifest.model import Entry, Ids, PageRef, Root
from storage_tiers.cold.process.operations import PageEntries
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.known_ranges import entry_of
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import StorageError, TierCorrupt, TierUnavailable
from storage_tiers.types import SharedFile

T = TypeVar("T")

#: Things that one attempt may find missing one after another: a page, a sidecar, chunks of a batch.
MAX_STEPS = 64
#: After so many, chunks seem to be evicted as others come: from there on what was brought is held.
STEPS_WITHOUT_HOLDING = 12


class Missing(Exception):
    """Something must be brought before this can be answered; `held` are the chunks that it then has. Caught in this
    package."""

    def __init__(self, bring: Callable[[], Awaitable[None]], held: Callable[[], Sequence[SharedFile]] = tuple) -> None:
        super().__init__()
        self.bring = bring
        self.held = held


async def complete(hydrator: Hydrator, attempt: Callable[[], T]) -> T:
    """Tries until nothing is missing. Raises what bringing it raised, or TierUnavailable if that does not end.

    Where the cache is too small for all who read, one at a time holds what it was brought while it waits for the rest:
    so somebody always gets on, and no two wait for each other.
    """
    for _ in range(STEPS_WITHOUT_HOLDING):
        try:
            return attempt()
        except Missing as missing:
            await missing.bring()
    holding: list[SharedFile] = []
    async with hydrator.holding:
        try:
            for _ in range(MAX_STEPS):
                try:
                    return attempt()
                except Missing as missing:
                    await missing.bring()
                    holding.extend(file.acquire() for file in missing.held())
        finally:
            for file in holding:
                file.release()
    raise TierUnavailable(
        "the cache of cold chunks is too small for what is being read; ask again, or raise tidelog.tier.chunk.cache.bytes and "
        "restart the node"
    )


class ColdView:
    __slots__ = ("_hydrator", "ids")

    def __init__(self, ids: Ids, hydrator: Hydrator) -> None:
        self.ids = ids
        self._hydrator = hydrator

    # --- entries ------------------------------------------------------------------------------------------------------
    def entry_at(self, root: Root, offset: int) -> Entry | None:
        """The entry that holds `offset`, or the next one where a gap does; None at or past the end."""
        if root.pages:
            for page in root.live_pages:
                if offset < page.end:
                    return self._entry_in_page(page, offset)
        at = bisect.bisect_right(root.entries, offset, key=lambda entry: entry.end)
        return root.entries[at] if at < len(root.entries) else None

    def _entry_in_page(self, page: PageRef, offset: int) -> Entry:
        found = self._hydrator.known.run(self.ids, page.key, offset)
        if found:
            return entry_of(found, offset)
        raise Missing(lambda: self._bring_run(page, offset))

    async def _bring_run(self, page: PageRef, offset: int) -> None:
        entries = await self._hydrator.page_entries(PageEntries(self.ids, page, offset))
        if not entries or entries[-1].end > page.end:
            raise TierCorrupt(f"page {page.key} does not hold offset {offset} as its manifest says; run `tidelog fsck`")
        self._hydrator.known.keep_run(self.ids, page.key, offset, entries)

    def front(self, entry: Entry) -> Sidecar:
        """Index, checksums and aborted transactions of an entry."""
        found = self._hydrator.front(entry)
        if found is None:
            raise Missing(lambda: self._hydrator.bring_front(entry))
        return found

    # --- bytes --------------------------------------------------------------------------------------------------------
    def files(self, entry: Entry, start: int, end: int) -> list[SharedFile]:
        """The chunks that hold bytes [start, end) of an entry, in order; not yet acquired."""
        indexes = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        found = [self._hydrator.chunk(entry, index) for index in indexes]
        present = [file for file in found if file is not None]
        if len(present) != len(found):
            self.front(entry)  # its checksums come first
            raise Missing(
                lambda: self._hydrator.bring_chunks(entry, indexes), lambda: self._hydrator.chunks(entry, indexes)
            )
        return present

    def more(self, entry: Entry, index: int) -> SharedFile | None:
        """A further chunk if it happens to be here."""
        return self._hydrator.chunk(entry, index)

    def read(self, entry: Entry, position: int, length: int) -> bytearray:
        """A copy of bytes [position, position + length) of an entry, or fewer at its end."""
        end = min(position + length, entry.length)
        data = bytearray(end - position)
        view = memoryview(data)
        for file in self.files(entry, position, end):
            within = position % CHUNK_BYTES
            size = min(CHUNK_BYTES - within, end - position)
            self._read_into(file, view[:size], within)
            view = view[size:]
            position += size
        return data

    def _read_into(self, file: SharedFile, target: memoryview, position: int) -> None:
        try:
            done = os.preadv(file.fd, (target,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            done = 0
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise StorageError(f"cannot read the cached chunk {file.path}: {error.strerror}") from error
            done = os.preadv(file.fd, (target,), position)  # a file system without RWF_NOWAIT
        if done < len(target):
            # Its pages left memory: a thread reads them, the loop does not wait for a disk.
            raise Missing(lambda: _warm(file, position, len(target)))


async def _warm(file: SharedFile, position: int, length: int) -> None:
    file.acquire()  # not sooner: nobody need bring what is missing
    try:
        data = await asyncio.to_thread(os.pread, file.fd, length, position)
    except OSError as error:
        raise StorageError(f"cannot read the cached chunk {file.path}: {error.strerror}") from error
    finally:
        file.release()
    if len(data) < length:
        raise StorageError(f"the cached chunk {file.path} is shorter than it was written; something else changes it")
