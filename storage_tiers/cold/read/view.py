"""Answers questions about one partition's remote segments from memory and the chunk cache, without waiting. If a piece is
missing, it raises `Missing`, which can download that piece.

`answer` makes a whole read in one pass: it finds the offset's segment, the sidecar, the interval, the batch among the
interval's batch headers, and the chunks. Every method that is not async either answers in this turn of the loop or raises
`Missing`. So a read is plain code, written once, and is retried as each missing piece arrives (`complete`).

Invariant: bytes come from verified chunks only.
"""

from __future__ import annotations

import asyncio
import bisect
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from storage_tiers.cold.manifest.model import Ids, Manifest, PageRef, RemoteSegment
from storage_tiers.cold.process.operations import PageSegments
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.known_segments import segment_of
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import OffsetOutOfRange, StorageError, TierCorrupt, TierUnavailable
from storage_tiers.records.batch import HEADER_BYTES
from storage_tiers.records.batch_walk import find_batch
from storage_tiers.types import AbortedTransaction, FileSlice, SharedFile

T = TypeVar("T")

#: Bytes that one step searches for a batch.
WALK_BYTES = 128 << 10
#: The most attempts of a read that holds its chunks. Each attempt may lack another piece: a page, a sidecar, chunks of a batch.
MAX_STEPS = 64
#: After this many attempts, arriving chunks probably evict those that the answer needs: from then on downloaded chunks are
#: held.
STEPS_WITHOUT_HOLDING = 12


class Missing(Exception):
    """An answer lacks a piece. `bring` downloads the piece, or raises LogError; `held` then returns its chunks, not yet
    acquired. This package catches it."""

    def __init__(self, bring: Callable[[], Awaitable[None]], held: Callable[[], Sequence[SharedFile]] = tuple) -> None:
        super().__init__()
        self.bring = bring
        self.held = held


@dataclass(frozen=True, slots=True)
class ColdSlices:
    """Bytes to send; the caller releases every slice's file. `next_offset` is above every offset in the slices. `aborted` are
    the aborted transactions that overlap the offsets from the requested one up to `next_offset`.

    Without slices, no batch lies between the offset and `next_offset`, the manifest's end. Continue there.
    """

    slices: tuple[FileSlice, ...]
    next_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def size(self) -> int:
        return sum(piece.length for piece in self.slices)


class Located(NamedTuple):
    """A batch: `size` bytes from byte `position` of `segment` on. `front` is the front of the segment's sidecar."""

    segment: RemoteSegment
    front: Sidecar
    position: int
    size: int


class Answer(NamedTuple):
    """`slices` come from these `chunks` of `segment`. `segment` is None if the tier has no batch from the offset on."""

    slices: ColdSlices
    segment: RemoteSegment | None
    chunks: range


class ColdView:
    """Answers reads of one partition from memory and the cache. Raises Missing for a piece that is not there."""

    __slots__ = ("_hydrator", "ids")

    def __init__(self, ids: Ids, hydrator: Hydrator) -> None:
        self.ids = ids
        self._hydrator = hydrator

    # --- answers ------------------------------------------------------------------------------------------------------
    def answer(self, manifest: Manifest, offset: int, max_bytes: int, log_start: int) -> Answer:
        """At most `max_bytes` from the batch that holds `offset` on, or from the next batch on, but at least one whole batch.
        OffsetOutOfRange below log start."""
        located = self._locate(manifest, offset, log_start)
        if located is None:
            return Answer(ColdSlices((), manifest.end), None, range(0))
        slices = self._slices(located, offset, max_bytes)
        first = located.position // CHUNK_BYTES
        return Answer(slices, located.segment, range(first, first + len(slices.slices)))

    def first_batch(self, manifest: Manifest, offset: int, log_start: int) -> list[SharedFile]:
        """The chunks of the batch that holds `offset`, or of the next one, not yet acquired; none past the tier's end."""
        located = self._locate(manifest, offset, log_start)
        if located is None:
            return []
        return self.files(located.segment, located.position, located.position + located.size)

    def _locate(self, manifest: Manifest, offset: int, log_start: int) -> Located | None:
        """The batch that holds `offset`, or the next one; None if the tier has no more. Segments that compaction left without
        a record are passed over, because consumers mistake an answer without records for one that their limit cut short."""
        log_start = max(log_start, manifest.log_start)
        if offset < log_start:
            raise OffsetOutOfRange(f"{self.ids}: offset {offset} is below log start {log_start}; read from there")
        segment = self.segment_at(manifest, offset)
        while segment is not None:
            if segment.records > 0:
                front = self.front(segment)
                found = self._find_batch(segment, front, offset)
                if found is not None:
                    return Located(segment, front, *found)
            segment = self.segment_at(manifest, segment.end)
        return None

    def _find_batch(self, segment: RemoteSegment, front: Sidecar, offset: int) -> tuple[int, int] | None:
        """(position, size) of a remote segment's first batch that ends at or after `offset`; None if no further batch follows
        in it."""
        _, at = front.floor_position(offset)
        until = front.end_position(offset)
        while at < segment.length:
            window = min(until - at, WALK_BYTES) if at < until else WALK_BYTES
            piece = self.read(segment, at, window)
            found, second, third = find_batch(piece, 0, len(piece), offset, False)
            if found >= 0 and at + found + second <= segment.length:
                return at + found, second
            if found != -1 or (second == 0 and len(piece) < HEADER_BYTES):
                raise TierCorrupt(f"{segment.key}: no whole batch begins at byte {at + second}; run `tidelog fsck`")
            # The window may cut a batch whose header it holds: skip that batch.
            at += second + (third if len(piece) - second >= HEADER_BYTES else 0)
        return None

    def _slices(self, located: Located, offset: int, max_bytes: int) -> ColdSlices:
        segment, front, position, size = located
        least = position + size
        limit = min(segment.length, max(position + max_bytes, least))
        files = self.files(segment, position, least)
        index = position // CHUNK_BYTES + len(files)
        while index * CHUNK_BYTES < limit:
            more = self.more(segment, index)
            if more is None:
                limit = index * CHUNK_BYTES
                break
            files.append(more)
            index += 1
        end_offset = _offset_after(front, limit)
        return ColdSlices(_cut(files, position, limit), end_offset, front.aborted_between(offset, end_offset))

    async def complete(self, attempt: Callable[[], T]) -> T:
        """Retries until nothing is missing. Raises the error of a failed download, or TierUnavailable after
        STEPS_WITHOUT_HOLDING + MAX_STEPS attempts.

        If the cache is too small for all readers, one reader at a time holds its downloaded chunks while it waits for the rest.
        So one reader always makes progress, and no two wait for each other.
        """
        for _ in range(STEPS_WITHOUT_HOLDING):
            try:
                return attempt()
            except Missing as missing:
                await missing.bring()
        async with self._hydrator.holding:
            return await _complete_holding(attempt)

    # --- segments ------------------------------------------------------------------------------------------------------
    def segment_at(self, manifest: Manifest, offset: int) -> RemoteSegment | None:
        """The segment that holds `offset`, or the next one if `offset` is in a gap; None at or past the end."""
        if manifest.pages:
            for page in manifest.live_pages:
                if offset < page.end:
                    return self._segment_in_page(page, offset)
        at = bisect.bisect_right(manifest.segments, offset, key=lambda segment: segment.end)
        return manifest.segments[at] if at < len(manifest.segments) else None

    def _segment_in_page(self, page: PageRef, offset: int) -> RemoteSegment:
        found = self._hydrator.known.run(self.ids, page.key, offset)
        if found:
            return segment_of(found, offset)
        raise Missing(lambda: self._bring_run(page, offset))

    async def page_segments(self, page: PageRef, start: int, timestamp: int | None = None) -> tuple[RemoteSegment, ...]:
        """Some neighbours in a page, beginning with the first that ends after `start` and reaches `timestamp` (ms)."""
        return await self._hydrator.page_segments(PageSegments(self.ids, page, start, timestamp))

    async def _bring_run(self, page: PageRef, offset: int) -> None:
        segments = await self.page_segments(page, offset)
        if not segments or segments[-1].end > page.end:
            raise TierCorrupt(f"page {page.key} does not hold offset {offset} as its manifest says; run `tidelog fsck`")
        self._hydrator.known.keep_run(self.ids, page.key, offset, segments)

    def front(self, segment: RemoteSegment) -> Sidecar:
        """Index, checksums and aborted transactions of a remote segment."""
        found = self._hydrator.front(segment)
        if found is None:
            raise Missing(lambda: self._hydrator.bring_front(segment))
        return found

    # --- bytes --------------------------------------------------------------------------------------------------------
    def files(self, segment: RemoteSegment, start: int, end: int) -> list[SharedFile]:
        """The chunks that hold bytes [start, end) of a remote segment, in order; not yet acquired."""
        indexes = range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        found = [self._hydrator.chunk(segment, index) for index in indexes]
        present = [file for file in found if file is not None]
        if len(present) != len(found):
            self.front(segment)  # the checksums are needed first
            raise Missing(
                lambda: self._hydrator.bring_chunks(segment, indexes), lambda: self._hydrator.chunks(segment, indexes)
            )
        return present

    def more(self, segment: RemoteSegment, index: int) -> SharedFile | None:
        """A further chunk, if it is in the cache."""
        return self._hydrator.chunk(segment, index)

    def read(self, segment: RemoteSegment, position: int, length: int) -> bytearray:
        """A copy of bytes [position, position + length) of a remote segment, or fewer at its end."""
        end = min(position + length, segment.length)
        data = bytearray(end - position)
        view = memoryview(data)
        for file in self.files(segment, position, end):
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
            # The rest is not in the page cache: a thread reads it, so that the loop never waits for a disk.
            raise Missing(lambda: _warm(file, position, len(target)))


async def _complete_holding(attempt: Callable[[], T]) -> T:
    """Retries as `ColdView.complete` does, but holds the downloaded chunks until nothing is missing. One reader at a time may
    do so."""
    held: list[SharedFile] = []
    try:
        for _ in range(MAX_STEPS):
            try:
                return attempt()
            except Missing as missing:
                await missing.bring()
                held.extend(file.acquire() for file in missing.held())
    finally:
        for file in held:
            file.release()
    raise TierUnavailable(
        "the cache of cold chunks is too small for the current reads; retry, or raise tidelog.tier.chunk.cache.bytes "
        "and restart the node"
    )


def _offset_after(front: Sidecar, position: int) -> int:
    """An offset that no batch before `position` reaches; at most one interval too high."""
    at = bisect.bisect_left(front.index, position, key=lambda row: row.position)
    return front.index[at].base_offset if at < len(front.index) else front.end


def _cut(files: list[SharedFile], position: int, limit: int) -> tuple[FileSlice, ...]:
    """Bytes [position, limit) of a remote segment as slices of its chunks, each file acquired once."""
    slices = []
    for file in files:
        within = position % CHUNK_BYTES
        length = min(CHUNK_BYTES - within, limit - position)
        slices.append(FileSlice(file.acquire(), within, length))
        position += length
    return tuple(slices)


async def _warm(file: SharedFile, position: int, length: int) -> None:
    file.acquire()  # acquired only here, because a `Missing` may be dropped without this call
    try:
        data = await asyncio.to_thread(os.pread, file.fd, length, position)
    except OSError as error:
        raise StorageError(f"cannot read the cached chunk {file.path}: {error.strerror}") from error
    finally:
        file.release()
    if len(data) < length:
        raise StorageError(
            f"the cached chunk {file.path} is shorter than when it was written; something else changed it"
        )
