"""Reads of one partition's remote segments: answered at once from the chunk cache, or reported as a miss.

`read` never waits. It queries the view once. If something that the answer needs is not in memory or in the cache, it returns a
`ColdMiss`. The miss starts the downloads, which finish even if no reader waits any longer. The miss's waiter ends when a retry
can succeed.

Invariants: an answer begins with the batch that holds the offset, or, where compaction or log start left a hole, with the next
batch. The bytes of an answer are verified. An answer stays inside one segment, which holds whole batches. Offsets below log
start are never looked up. An answer may end inside a batch, but never inside its first batch.

The manifest may not be the newest. If an object that it names is gone, the miss makes the newest manifest current (`reload`).
`read` raises OffsetOutOfRange if that manifest's log start is above the offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from storage_tiers.cold.manifest.model import Ids, Manifest, RemoteSegment
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.cold.read import timestamp_lookup
from storage_tiers.cold.read.fetcher import Hydrator, chunk_count
from storage_tiers.cold.read.prefetch import ReadAhead
from storage_tiers.cold.read.view import ColdSlices, ColdView, Missing
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import LogError, TierCorrupt, TierObjectMissing, TierUnavailable
from storage_tiers.types import NO_EPOCH, SharedFile, TimestampOffset

T = TypeVar("T")

#: `Load` returns the current manifest. `Reload` first fetches the newest one from the store and makes it current.
Load = Callable[[Ids], Awaitable[Manifest]]
Reload = Callable[[Ids], Awaitable[Manifest]]

#: Seconds that a downloaded batch is kept for the reader that waited for it, before it may be evicted.
HOLD_S = 1.0
#: The most chunks that one step of a reader reads ahead: a window over tiny segments spans many objects.
MAX_CHUNKS_AHEAD = 32
#: The most restarts of a lookup whose manifest proves to be outdated.
MAX_RELOADS = 3


@dataclass(frozen=True, slots=True)
class ColdMiss:
    """`waiter` ends with None when a retry can succeed, or with the LogError to answer. All readers of one offset share it:
    await it shielded."""

    waiter: asyncio.Future[None]


class _ChunkId(NamedTuple):
    """A chunk's name for read-ahead: its segment's base and its index. A segment's last chunk is (the segment's end, -1), so
    that the first chunk of the next segment can name its predecessor without knowing that segment."""

    offset: int
    number: int


class ColdReader:
    """One partition's cold reads. Runs on the broker's event loop; any number of readers share a Hydrator."""

    __slots__ = ("_held", "_hydrating", "_hydrator", "_load", "_read_ahead", "_reload", "_view", "ids")

    def __init__(self, ids: Ids, hydrator: Hydrator, *, load: Load, reload: Reload) -> None:
        self.ids = ids
        self._hydrator = hydrator
        self._load = load
        self._reload = reload
        self._view = ColdView(ids, hydrator)
        self._read_ahead: ReadAhead[_ChunkId] = ReadAhead()
        self._hydrating: dict[int, asyncio.Future[None]] = {}
        self._held: dict[int, list[SharedFile]] = {}

    # --- the manifest -----------------------------------------------------------------------------------------------------
    @property
    def manifest_in_memory(self) -> Manifest | None:
        """The current manifest, if it is in memory."""
        return self._hydrator.known.manifest(self.ids)

    async def manifest(self) -> Manifest:
        """The current manifest. TierUnavailable or TierCorrupt if neither the disk nor the store has it."""
        manifest = self.manifest_in_memory
        if manifest is not None:
            return manifest
        return await self._hydrator.once(self.ids, self._bring_manifest)

    async def _bring_manifest(self) -> Manifest:
        manifest = await self._load(self.ids)
        self._hydrator.known.loads += 1
        self._hydrator.known.keep_manifest(self.ids, manifest)
        return manifest

    def replaced(self, manifest: Manifest | None) -> None:
        """Notes that another manifest has become current; None: the partition has no manifest."""
        if manifest is None:
            self._hydrator.known.forget(self.ids)
        else:
            self._hydrator.known.renew(self.ids, manifest)

    # --- reading ------------------------------------------------------------------------------------------------------
    def read(self, manifest: Manifest | None, offset: int, max_bytes: int, *, log_start: int) -> ColdSlices | ColdMiss:
        """Reads at most `max_bytes`, but at least one whole batch. `manifest` is None if it is not in memory. OffsetOutOfRange
        below log start."""
        try:
            if manifest is None:
                raise Missing(_nothing)
            answer = self._view.answer(manifest, offset, max_bytes, log_start)
        except Missing:
            self._hydrator.misses += 1
            return ColdMiss(self._hydration(manifest, offset, log_start))
        if answer.segment is None:
            return answer.slices
        self._hydrator.hits += 1
        if self._held:
            self._release(offset)
        for index in answer.chunks:
            self._accessed(manifest, answer.segment, index)
        return answer.slices

    # --- times and epochs ---------------------------------------------------------------------------------------------
    async def offset_for_timestamp(
        self, manifest: Manifest, timestamp: int, *, log_start: int
    ) -> TimestampOffset | None:
        """The first record by offset, from log start on, whose timestamp (ms) is at least `timestamp`; None if the tier has
        none. Raises TierUnavailable or TierCorrupt."""
        return await self._current(
            manifest, lambda newest: timestamp_lookup.first_at_or_after(self._view, newest, timestamp, log_start)
        )

    async def max_timestamp(self, manifest: Manifest, *, log_start: int) -> TimestampOffset | None:
        """The record with the largest timestamp from log start on, the first one if several have it; None if there is none."""
        return await self._current(
            manifest, lambda newest: timestamp_lookup.with_max_timestamp(self._view, newest, log_start)
        )

    async def newest_state(self, manifest: Manifest) -> Sidecar:
        """Leader epochs and the producer snapshot at exactly the manifest's end, from which a log is rebuilt."""
        return await self._current(manifest, self._newest_state)

    async def epoch_end_offset(self, manifest: Manifest, leader_epoch: int) -> tuple[int, int]:
        """(largest epoch <= `leader_epoch` in the tier's history, its end offset); (-1, -1) if there is none (KIP-101)."""
        epochs = (await self.newest_state(manifest)).epochs if manifest.sidecar is not None else ()
        after = sum(entry.epoch <= leader_epoch for entry in epochs)
        if after == 0:
            return NO_EPOCH, -1
        return epochs[after - 1].epoch, epochs[after].start_offset if after < len(epochs) else manifest.end

    async def epoch_at(self, manifest: Manifest, offset: int) -> int:
        """The leader epoch under which `offset` was written; -1 if the tier's history does not reach `offset`."""
        if manifest.sidecar is None or offset >= manifest.end:
            return NO_EPOCH
        epochs = (await self.newest_state(manifest)).epochs
        return max((entry.epoch for entry in epochs if entry.start_offset <= offset), default=NO_EPOCH)

    async def _newest_state(self, manifest: Manifest) -> Sidecar:
        if manifest.sidecar is None:
            raise TierCorrupt(
                f"the manifest of {self.ids} names no sidecar for its end {manifest.end}; run `tidelog fsck`"
            )
        return await self._hydrator.newest_state(manifest.sidecar, manifest.end)

    async def _current(self, manifest: Manifest, look_up: Callable[[Manifest], Awaitable[T]]) -> T:
        """Runs a lookup on `manifest`, and on the newest manifest if an object that `manifest` names is gone."""
        for _ in range(MAX_RELOADS):
            try:
                return await look_up(manifest)
            except TierObjectMissing:
                newest = await self._reload(self.ids)
                if newest.commit <= manifest.commit:
                    raise
                manifest = newest
        return await look_up(manifest)

    # --- hydration ----------------------------------------------------------------------------------------------------
    def _hydration(self, manifest: Manifest | None, offset: int, log_start: int) -> asyncio.Future[None]:
        known = self._hydrating.get(offset)
        if known is not None and not known.done():
            return known
        permits = self._hydrator.permits
        room = permits.take()
        if room is not None:
            return room
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(_retrieve_error)
        self._hydrating[offset] = waiter
        task = self._hydrator.spawn(self._hydrate(waiter, manifest, offset, log_start))
        task.add_done_callback(lambda _: permits.give_back())
        return waiter

    async def _hydrate(
        self, waiter: asyncio.Future[None], manifest: Manifest | None, offset: int, log_start: int
    ) -> None:
        failure: LogError | None = TierUnavailable(f"{self.ids}: the cold read was cancelled; retry")
        try:
            current = manifest if manifest is not None else await self.manifest()
            await self._current(current, lambda newest: self._bring(newest, offset, log_start))
            failure = None
        except LogError as error:
            failure = error
        finally:
            if self._hydrating.get(offset) is waiter:
                del self._hydrating[offset]
            if not waiter.done():
                if failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(failure)

    async def _bring(self, manifest: Manifest, offset: int, log_start: int) -> None:
        """Downloads the first batch's chunks and holds them until they are read, for at most HOLD_S seconds: the waiting reader
        runs only after this task, and the chunks could be evicted before."""
        files = await self._view.complete(lambda: self._view.first_batch(manifest, offset, log_start))
        self._release(offset)
        self._held[offset] = [file.acquire() for file in files]
        asyncio.get_running_loop().call_later(HOLD_S, self._release, offset)

    def _release(self, offset: int) -> None:
        for file in self._held.pop(offset, ()):
            file.release()

    # --- reading ahead ------------------------------------------------------------------------------------------------
    def _accessed(self, manifest: Manifest, segment: RemoteSegment, index: int) -> None:
        window = self._read_ahead.accessed(_chunk_id(segment, index), _chunk_before(segment, index))
        if window is None:
            return
        for wanted, (following, number) in enumerate(self._chunks_after(manifest, segment, index)):
            if window <= 0 or wanted == MAX_CHUNKS_AHEAD or not self._hydrator.want(following, number):
                return
            window -= min(CHUNK_BYTES, following.length - number * CHUNK_BYTES)

    def _chunks_after(
        self, manifest: Manifest, segment: RemoteSegment, index: int
    ) -> Iterator[tuple[RemoteSegment, int]]:
        """The chunks that follow, as far as their segments are in memory. A segment in a page not yet read is fetched for the
        next call."""
        following: RemoteSegment | None = segment
        start = index + 1
        while following is not None:
            for number in range(start, chunk_count(following)):
                yield following, number
            start = 0
            try:
                following = self._view.segment_at(manifest, following.end)
            except Missing as missing:
                self._hydrator.spawn(_bring(missing))
                return


async def _bring(missing: Missing) -> None:
    await missing.bring()


async def _nothing() -> None:
    """Downloads nothing: a hydration loads the manifest before its first attempt."""


def _retrieve_error(waiter: asyncio.Future[None]) -> None:
    if not waiter.cancelled():
        waiter.exception()  # marks the exception as retrieved, because there may be no waiter left


def _chunk_id(segment: RemoteSegment, index: int) -> _ChunkId:
    return _ChunkId(segment.end, -1) if index == chunk_count(segment) - 1 else _ChunkId(segment.base, index)


def _chunk_before(segment: RemoteSegment, index: int) -> _ChunkId:
    if index > 0:
        return _ChunkId(segment.base, index - 1)
    return _ChunkId(segment.base if segment.gap_from is None else segment.gap_from, -1)
