"""Downloads the data that cold reads need: sidecars into memory, chunks into the cache. One `Hydrator` serves all partitions of
a broker.

Invariants: identical concurrent requests to the tier process are coalesced, here and nowhere else. A download finishes even if
every waiter leaves. Failures go to current waiters and are not cached, with one exception: an object that was corrupt twice is
not requested again within a second (`recently_corrupt.py`). Read-ahead never fills more than half of the cache with unread
chunks.

A downloaded chunk may be evicted before its waiter runs; the reader then misses it again and retries.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from storage_tiers.clock import Clock
from storage_tiers.cold.manifest.model import NewestSidecar, RemoteSegment
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.operations import FetchChunk, FetchObject, PageSegments, RaisePriority, ReadyFile
from storage_tiers.cold.process.settings import CHUNK_BYTES, MAX_METADATA_OBJECT_BYTES, MIB
from storage_tiers.cold.read.cache import ChunkCache, ChunkKey
from storage_tiers.cold.read.known_segments import KnownSegments
from storage_tiers.cold.read.lookup_permits import LookupPermits
from storage_tiers.cold.read.pace import Pace
from storage_tiers.cold.read.recently_corrupt import RecentlyCorrupt
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.segment_sidecar import parse_segment_part
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import LogError, StorageError, TierCorrupt, TierUnavailable
from storage_tiers.types import SharedFile

#: The bound on parsed sidecars in memory, as estimated by `_cost`: room for the sidecars of about 60 segments of 1 GiB, or of
#: 600 segments of 100 MB.
MAX_SIDECAR_BYTES = 16 << 20
#: Bytes in memory of an empty parsed sidecar, of one index row, of one checksum, and of one aborted transaction (a tuple and
#: its numbers).
_SIDECAR_BYTES, _ROW_BYTES, _CHECK_BYTES, _ABORTED_BYTES = 600, 16, 4, 200
#: Sidecars of more bytes are parsed in a thread.
_PARSE_IN_THREAD_BYTES = 64 << 10
#: The longest wait of a download for room in the cache, and the interval at which it looks again, in seconds.
ROOM_S, ROOM_STEP_S = 10.0, 0.05
_MIBS = CHUNK_BYTES // MIB

T = TypeVar("T")


class PendingFetch:
    """A download under way. `urgent`: a reader waits for it. `question` is None for a kind of download that read-ahead never
    starts."""

    __slots__ = ("question", "task", "urgent")

    def __init__(self, task: asyncio.Task[Any], question: FetchChunk | FetchObject | None) -> None:
        self.task = task
        self.question = question
        self.urgent = question is None or question.urgent


class Hydrator:
    """Counters are plain numbers: reads answered at once (`hits`) or not (`misses`), chunks brought to the cache (`brought`),
    those of them that no reader had asked for (`read_ahead`) or that another broker's cache had (`copied`), `sidecars`
    fetched, seconds by which read-ahead was delayed in favour of producers (`held_s`)."""

    def __init__(self, client: TierClient, cache: ChunkCache, pace: Pace, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self.cache = cache
        self.known = KnownSegments()
        self.pace = pace
        self.permits = LookupPermits()
        self._fronts: OrderedDict[str, Sidecar] = OrderedDict()
        self._fronts_bytes = 0
        self._flights: dict[Hashable, PendingFetch] = {}
        self._corrupt = RecentlyCorrupt(clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._read_ahead_bytes = 0
        self._room = asyncio.Event()
        self._pacing = asyncio.Lock()
        #: Held by the one read that may hold chunks while it waits for more.
        self.holding = asyncio.Lock()
        self.hits = self.misses = self.brought = self.read_ahead = self.copied = self.sidecars = 0
        self.held_s = 0.0

    @property
    def in_flight(self) -> int:
        """The number of chunks and sidecars being downloaded, for waiting readers or as read-ahead."""
        return sum(flight.question is not None for flight in self._flights.values())

    # --- in memory ----------------------------------------------------------------------------------------------------
    def front(self, segment: RemoteSegment) -> Sidecar | None:
        """Index, checksums and aborted transactions of a remote segment, if they are in memory."""
        found = self._fronts.get(segment.sidecar_key)
        if found is not None:
            self._fronts.move_to_end(segment.sidecar_key)
        return found

    def chunk(self, segment: RemoteSegment, index: int) -> SharedFile | None:
        return self.cache.get(ChunkKey(segment.key, segment.position, index))

    def chunks(self, segment: RemoteSegment, indexes: range) -> list[SharedFile]:
        """The files of the given chunks that are in the cache."""
        return [file for index in indexes if (file := self.chunk(segment, index)) is not None]

    # --- downloads ----------------------------------------------------------------------------------------------------
    async def bring_front(self, segment: RemoteSegment) -> None:
        """Returns when `front` has the sidecar, which may be evicted later. Raises the LogError that the tier process
        answered."""
        await self._join(self._front_flight(segment, urgent=True))

    async def bring_chunks(self, segment: RemoteSegment, indexes: range) -> None:
        """Returns when `chunk` has all these chunks, which may be evicted later. The caller has the segment's front in
        memory."""
        flights = [self._chunk_flight(segment, index, urgent=True) for index in indexes]
        for flight in flights:
            if flight is not None:
                await self._join(flight)

    async def newest_state(self, newest: NewestSidecar, end: int) -> Sidecar:
        """The epochs and producers at exactly `end`, from the manifest's newest sidecar. The returned sidecar has no other
        parts."""
        position, length = sidecar.span(newest.sections, sidecar.STATE)
        if length == 0:
            raise TierCorrupt(f"{newest.key} holds neither epochs nor producers; run `tidelog fsck`")
        data = await self.once((newest.key, position), lambda: self._fetch(FetchObject(newest.key, position, length)))
        return sidecar.parse_part(data, position, newest.sections, base=0, end=end, length=0, crc=0, where=newest.key)

    async def page_segments(self, question: PageSegments) -> tuple[RemoteSegment, ...]:
        """Some segments of a page, in order. The tier process reads and caches the page."""
        return await self.once(question, lambda: self._client.ask(question))

    async def once(self, name: Hashable, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the download under `name`, started with `begin` unless one is under way."""
        flight = self._flights.get(name)
        if flight is None:
            self._corrupt.check(name)
            flight = self._fly(name, begin(), None)
        found: T = await asyncio.shield(flight.task)
        return found

    def want(self, segment: RemoteSegment, index: int) -> bool:
        """Reads a chunk ahead, and its segment's front if needed. False if the cache would hold too many unread chunks."""
        key = ChunkKey(segment.key, segment.position, index)
        if key in self.cache or key in self._flights:
            return True
        size = chunk_length(segment, index)
        if self.cache.unread_bytes + self._read_ahead_bytes + size > self.cache.limit_bytes // 2:
            return False
        self._read_ahead_bytes += size
        self.spawn(self._want(segment, index, size))
        return True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs work in the background, which outlives its caller; `close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._download_ended)
        return task

    async def close(self) -> None:
        """Cancels all downloads. The client and the cache belong to the caller."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _download_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because there may be no waiter

    # --- coalescing ---------------------------------------------------------------------------------------------------
    async def _join(self, flight: PendingFetch) -> None:
        question = flight.question
        if not flight.urgent and question is not None:
            flight.urgent = True
            self.spawn(self._client.ask(RaisePriority(question.key, question.position, question.length)))
        # Shielded: a waiter that leaves must not cancel the download for the others.
        await asyncio.shield(flight.task)

    def _front_flight(self, segment: RemoteSegment, *, urgent: bool) -> PendingFetch:
        flight = self._flights.get(segment.sidecar_key)
        if flight is None:
            self._corrupt.check(segment.sidecar_key)
            position, length = sidecar.front(segment.sections)
            if not 0 < length <= MAX_METADATA_OBJECT_BYTES:
                raise TierCorrupt(f"the manifest says that {segment.sidecar_key} has {length} bytes of index")
            question = FetchObject(segment.sidecar_key, position, length, urgent)
            flight = self._fly(segment.sidecar_key, self._bring_front(segment, question), question)
        return flight

    def _chunk_flight(self, segment: RemoteSegment, index: int, *, urgent: bool) -> PendingFetch | None:
        """The download of a chunk; None if it is in the cache."""
        key = ChunkKey(segment.key, segment.position, index)
        if key in self.cache:
            return None
        flight = self._flights.get(key)
        if flight is None:
            self._corrupt.check(key)
            front = self._fronts.get(segment.sidecar_key)
            if front is None:
                raise TierUnavailable(f"the sidecar of {segment.key} was evicted from memory; retry")
            crcs = tuple(front.mib_crcs[index * _MIBS : (index + 1) * _MIBS])
            start = segment.position + index * CHUNK_BYTES
            question = FetchChunk(segment.key, start, chunk_length(segment, index), crcs, urgent)
            flight = self._fly(key, self._bring_chunk(key, question), question)
        return flight

    def _fly(
        self, name: Hashable, work: Coroutine[Any, Any, Any], question: FetchChunk | FetchObject | None
    ) -> PendingFetch:
        flight = PendingFetch(self.spawn(work), question)
        self._flights[name] = flight
        flight.task.add_done_callback(functools.partial(self._landed, name))
        return flight

    def _landed(self, name: Hashable, task: asyncio.Task[Any]) -> None:
        del self._flights[name]
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self._corrupt.forget(name)
        elif isinstance(failure, TierCorrupt):
            self._corrupt.note(name, failure)

    async def _bring_front(self, segment: RemoteSegment, question: FetchObject) -> None:
        data = await self._fetch(question)

        def parse() -> Sidecar:
            return parse_segment_part(data, question.position, segment)

        found = await asyncio.to_thread(parse) if len(data) > _PARSE_IN_THREAD_BYTES else parse()
        if not found.index or not found.mib_crcs:
            raise TierCorrupt(f"{segment.sidecar_key} has no index or no checksums; run `tidelog fsck`")
        self.sidecars += 1
        self._fronts[segment.sidecar_key] = found
        self._fronts_bytes += _cost(found)
        while self._fronts_bytes > MAX_SIDECAR_BYTES and len(self._fronts) > 1:
            self._fronts_bytes -= _cost(self._fronts.popitem(last=False)[1])

    async def _bring_chunk(self, key: ChunkKey, question: FetchChunk) -> None:
        await self._yield_to_producers(question)
        ready = await self._fetch_file(question)
        self.cache.add(key, ready.path, ready.size, unread=not question.urgent)
        self.brought += 1
        self.copied += ready.is_copy
        self.read_ahead += not question.urgent

    async def _yield_to_producers(self, question: FetchChunk) -> None:
        if question.urgent:
            self.pace.delay(question.length, self._clock.monotonic(), urgent=True)
            return
        # Chunks read ahead wait one after another, so that the rate of that moment applies to each.
        async with self._pacing:
            held_s = self.pace.delay(question.length, self._clock.monotonic(), urgent=False)
            if held_s > 0:
                self.held_s += held_s
                await self._clock.sleep(held_s)

    async def _want(self, segment: RemoteSegment, index: int, size: int) -> None:
        try:
            if self.front(segment) is None:
                await asyncio.shield(self._front_flight(segment, urgent=False).task)
            flight = self._chunk_flight(segment, index, urgent=False)
            if flight is not None:
                await asyncio.shield(flight.task)
        except LogError:
            pass  # a reader that needs the chunk requests it, and gets the error
        finally:
            self._read_ahead_bytes -= size

    async def _fetch(self, question: FetchObject) -> bytes:
        """The bytes of a small object; its file is removed."""
        ready = await self._fetch_file(question)
        try:
            return _read_all(ready.path)
        except OSError as error:
            raise TierUnavailable(f"the cached copy of {question.key} was removed; retry") from error
        finally:
            self.cache.discard(ready.path)

    async def _fetch_file(self, question: FetchChunk | FetchObject) -> ReadyFile:
        await self._reserve(question.length)
        try:
            return await self._client.ask(question)
        except StorageError as error:
            # The disk is full. Produce needs the space more than cold reads do.
            self.cache.shrink()
            raise TierUnavailable(f"{error}; the cache has freed half of its space; retry") from error
        finally:
            self.cache.unreserve(question.length)
            self._room.set()

    async def _reserve(self, size: int) -> None:
        """Waits while chunks that are being downloaded or sent fill the cache. They can be evicted once downloaded and sent."""
        patience = ROOM_S
        while not self.cache.reserve(size):
            if patience <= 0:
                raise TierUnavailable(
                    f"the cache of cold chunks ({self.cache.limit_bytes} bytes) has been full of chunks being sent for "
                    f"{ROOM_S:g} s; retry, or raise tidelog.tier.chunk.cache.bytes and restart the node"
                )
            self._room.clear()
            try:
                # The end of a download sets the event; the end of an answer does not.
                async with asyncio.timeout(ROOM_STEP_S):
                    await self._room.wait()
            except TimeoutError:
                patience -= ROOM_STEP_S


def _read_all(path: str) -> bytes:
    # Read on the loop: the file is small, and was written a moment ago.
    with open(path, "rb", buffering=0) as file:
        return file.read()


def chunk_length(segment: RemoteSegment, index: int) -> int:
    """The length of a chunk in bytes: CHUNK_BYTES, or the rest of the segment for its last chunk."""
    return min(CHUNK_BYTES, segment.length - index * CHUNK_BYTES)


def chunk_count(segment: RemoteSegment) -> int:
    return -(-segment.length // CHUNK_BYTES)


def _cost(parsed: Sidecar) -> int:
    index, checks = len(parsed.index) * _ROW_BYTES, len(parsed.mib_crcs) * _CHECK_BYTES
    return _SIDECAR_BYTES + index + checks + len(parsed.aborted) * _ABORTED_BYTES
