"""Reads records: a fetch stream to each leader, decoded as the program takes them.

Invariants: a partition's records come in order, none twice and none skipped, except deleted ones and, under
`committed_only`, aborted ones. The reader fetches ahead of the program by at most one message of each stream and HTTP/2's
window. If a node goes away, the reader waits and continues where it stopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from grpc_api.contract.log import Isolation, Log, OffsetQuery, OffsetSpec
from grpc_api.messages.log import aborted_of
from grpc_api.proto import log_pb2 as pb
from grpc_api.remote_topics import RemoteTopics
from grpc_api.routes import Routes
from grpc_api.sdk.decoding import messages
from grpc_api.sdk.fetch_streams import FetchStreams
from grpc_api.sdk.retries import Patience
from grpc_api.sdk.values import Message, OutOfRange, ReaderOptions, Start, checked_start, start_ms
from storage_tiers.errors import InvalidPartitions, InvalidRequest, LogError, OffsetOutOfRange
from storage_tiers.records.batch_walk import scan_batches
from storage_tiers.types import TopicPartition

#: Longest silence of the node on a stream; therefore also the longest time between checks for new partitions.
SILENCE_MS = 500


class _TakenAhead(NamedTuple):
    """Fetched records of one partition that the program has not taken; `end` is the offset after them."""

    partition: int
    messages: Iterator[Message]
    end: int


class Reader:
    """Made by `Client.reader`: `async for message in reader`. `position` is the next offset of each partition."""

    def __init__(
        self,
        routes: Routes,
        log: Log,
        topics: RemoteTopics,
        *,
        topic: str,
        partitions: Sequence[int] | None,
        start: Start,
        options: ReaderOptions,
    ) -> None:
        self._log = log
        self._topics = topics
        self._topic = topic
        self._wanted = partitions
        self._start = start
        self._options = options
        self._isolation = Isolation.READ_COMMITTED if options.committed_only else Isolation.READ_UNCOMMITTED
        self._patience = Patience(routes.home, options.retry_s)
        self._began = False
        self.position: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._streams = FetchStreams(routes, options.retry_s)
        self._chunks: deque[_TakenAhead] = deque()

    # --- for programs -------------------------------------------------------------------------------------------------
    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        while True:
            message = self._next_held()
            if message is not None:
                return message
            if not self._began:
                await self._begin()
            if self._options.until_end and self._at_end():
                self._close_stream()
                raise StopAsyncIteration
            await self._fetch()

    async def take(self, most: int = 1000) -> list[Message]:
        """Up to `most` records, as soon as there is at least one. Empty only at the end, with `until_end`."""
        if most < 1:
            raise InvalidRequest(f"a reader takes at least one record at a time, not {most}")
        first = await anext(self, None)
        if first is None:
            return []
        taken = [first]
        while len(taken) < most and (message := self._next_held()) is not None:
            taken.append(message)
        return taken

    async def seek(self, start: Start, partition: int | None = None) -> None:
        """Continues from `start`, in this partition or in all partitions."""
        if not self._began:
            await self._begin()
        partitions = list(self.position) if partition is None else [partition]
        unknown = set(partitions) - set(self.position)
        if unknown:
            raise InvalidPartitions(f"this reader does not read partition {min(unknown)} of {self._topic}")
        self.position.update(await self._resolve(start, partitions))
        self._close_stream()

    async def close(self) -> None:
        self._close_stream()

    # --- beginning ----------------------------------------------------------------------------------------------------
    async def _begin(self) -> None:
        have = self._partitions()
        wanted = have if self._wanted is None else list(dict.fromkeys(self._wanted))
        missing = set(wanted) - set(have)
        if missing:
            raise InvalidPartitions(f"{self._topic} has partitions 0 to {len(have) - 1}, not {min(missing)}")
        if self._options.until_end:
            self._ends = await self._offsets(wanted, OffsetSpec.LATEST)
        self.position = dict(await self._resolve(self._start, wanted))
        self._began = True

    def _partitions(self) -> list[int]:
        (found,) = self._topics.describe([self._topic])
        if isinstance(found, LogError):
            raise found
        return [part.partition for part in found.partitions]

    async def _resolve(self, start: Start, partitions: Sequence[int]) -> Mapping[int, int]:
        start = checked_start(start)
        if start == "earliest":
            return await self._offsets(partitions, OffsetSpec.EARLIEST)
        if start == "latest":
            return await self._offsets(partitions, OffsetSpec.LATEST)
        if isinstance(start, datetime):
            return await self._offsets(partitions, start_ms(start))
        assert isinstance(start, Mapping)
        missing = set(partitions) - set(start)
        if missing:
            raise InvalidPartitions(f"no offset is given for partition {min(missing)} of {self._topic}")
        chosen = {partition: start[partition] for partition in partitions}
        wrong = next((offset for offset in chosen.values() if not isinstance(offset, int)), None)
        if wrong is not None:
            raise InvalidRequest(f"an offset is a number, not {wrong!r}")
        past = [partition for partition, offset in chosen.items() if offset > self._ends.get(partition, offset)]
        chosen.update(await self._instead_of(past, chosen))
        return chosen

    async def _instead_of(self, past: Sequence[int], chosen: Mapping[int, int]) -> Mapping[int, int]:
        """The offsets that replace those past the end where this reader stops. Raises OffsetOutOfRange if the options say so:
        the reader never fetches there, so no broker would report it."""
        if not past or self._options.out_of_range is OutOfRange.LATEST:
            return {partition: self._ends[partition] for partition in past}
        if self._options.out_of_range is OutOfRange.EARLIEST:
            return await self._offsets(past, OffsetSpec.EARLIEST)
        partition = past[0]
        raise OffsetOutOfRange(
            f"{self._topic}-{partition}: offset {chosen[partition]} is past the end "
            f"{self._ends[partition]}, where this reader stops"
        )

    async def _offsets(self, partitions: Sequence[int], timestamp: int) -> dict[int, int]:
        """The offset of each partition for `timestamp`, a time in ms or an OffsetSpec; the partition's end if no record has
        that time or a later one."""
        found: dict[int, int] = {}
        while len(found) < len(partitions):
            rest = [partition for partition in partitions if partition not in found]
            failure = await self._look_up(rest, timestamp, found)
            if failure is not None:
                await self._patience.pause(failure)
        self._patience.succeeded()
        return found

    async def _look_up(self, partitions: Sequence[int], timestamp: int, found: dict[int, int]) -> LogError | None:
        """Adds the offsets found; returns the first failure of the others."""
        queries = [
            OffsetQuery(TopicPartition(self._topic, each), timestamp, isolation=self._isolation) for each in partitions
        ]
        try:
            answers = await self._log.list_offsets(queries)
        except LogError as error:
            return error
        failure: LogError | None = None
        late = []
        for partition, answer in zip(partitions, answers, strict=True):
            if isinstance(answer, LogError):
                failure = failure or answer
            elif answer is None:
                late.append(partition)
            else:
                found[partition] = answer.offset
        if late:
            found.update(await self._offsets(late, OffsetSpec.LATEST))
        return failure

    # --- continuing ---------------------------------------------------------------------------------------------------
    def _next_held(self) -> Message | None:
        while self._chunks:
            chunk = self._chunks[0]
            message = next(chunk.messages, None)
            if message is not None:
                if self._options.until_end and message.offset >= self._ends.get(chunk.partition, message.offset + 1):
                    self.position[chunk.partition] = message.offset
                    self._chunks.popleft()
                    continue
                self.position[chunk.partition] = message.offset + 1
                return message
            self.position[chunk.partition] = max(self.position[chunk.partition], chunk.end)
            self._chunks.popleft()
        return None

    def _at_end(self) -> bool:
        return all(self.position[partition] >= end for partition, end in self._ends.items())

    async def _fetch(self) -> None:
        """Reads one message of the streams, which it opens if needed. Pauses after a retriable failure."""
        try:
            if not self._streams.is_open:
                self._streams.open(self._request())
            parts = await self._streams.read()
        except asyncio.CancelledError:
            self._close_stream()  # a cancelled read ends its stream
            raise
        except LogError as error:
            self._close_stream()
            if self._streams.gave_up:
                self._streams.gave_up = False
                raise
            await self._failed(error)
            return
        if parts is None:
            self._close_stream()
            return
        self._patience.succeeded()
        for partition, part in parts.items():
            if part.records:
                self._hold(partition, part)
        await self._follow_growth()

    def _request(self) -> pb.FetchRequest:
        order = [
            partition
            for partition, offset in self.position.items()
            if not self._options.until_end or offset < self._ends[partition]
        ]
        share = self._options.fetch_bytes
        return pb.FetchRequest(
            partitions=[
                pb.FetchPartition(
                    topic=self._topic, partition=partition, offset=self.position[partition], max_bytes=share
                )
                for partition in order
            ],
            max_wait_ms=SILENCE_MS,
            min_bytes=1,
            max_bytes=share,
            isolation=pb.Isolation.ValueType(self._isolation),
        )

    def _hold(self, partition: int, part: pb.FetchedPartition) -> None:
        batches, _, _ = scan_batches(part.records, 0, len(part.records))
        self._chunks.append(_TakenAhead(partition, self._decoded(partition, part), batches[-1][3] if batches else 0))

    def _decoded(self, partition: int, part: pb.FetchedPartition) -> Iterator[Message]:
        # A generator, so that the position is read when the first record is taken.
        yield from messages(self._topic, partition, part.records, self.position[partition], aborted_of(part) or ())

    async def _follow_growth(self) -> None:
        """Adds new partitions of the topic, from their beginning."""
        if self._wanted is not None or self._options.until_end or self._chunks:
            return
        (found,) = self._topics.describe([self._topic])
        if isinstance(found, LogError) or len(found.partitions) == len(self.position):
            return
        new = [part.partition for part in found.partitions if part.partition not in self.position]
        self.position.update(await self._offsets(new, OffsetSpec.EARLIEST))
        self._close_stream()

    # --- failures -----------------------------------------------------------------------------------------------------
    async def _failed(self, error: LogError) -> None:
        if isinstance(error, OffsetOutOfRange) and self._options.out_of_range is not OutOfRange.FAIL:
            await self._back_into_range()
            return
        await self._patience.pause(error)

    async def _back_into_range(self) -> None:
        partitions = list(self.position)
        begins = await self._offsets(partitions, OffsetSpec.EARLIEST)
        ends = await self._offsets(partitions, OffsetSpec.LATEST)
        chosen = begins if self._options.out_of_range is OutOfRange.EARLIEST else ends
        for partition, offset in self.position.items():
            if not begins[partition] <= offset <= ends[partition]:
                self.position[partition] = chosen[partition]

    def _close_stream(self) -> None:
        self._streams.close()
        self._chunks.clear()
