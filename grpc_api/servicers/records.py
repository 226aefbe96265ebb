"""`tidelog.v1.Records` over the core's contract: encodes records into batches, and decodes batches into records.

Invariants: a refused record affects only the records of its own batch. A read builds one message at a time. While the caller
reads a message, the read holds only inflated batches, within the bound of `decoding`. Offsets rise within a partition. One read
at a time decodes, in a thread, because a batch of a few kilobytes may inflate to many megabytes.

A record that is sent again is appended again. `Log`, which carries raw batches, serves callers that need high throughput.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from grpc_api.contract.core import Core
from grpc_api.contract.log import Append, Appended, Fetch, Fetched, FetchPartition, Isolation, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import TopicDescription
from grpc_api.limits import MAX_FETCH_PARTITIONS, MAX_SENT_RECORDS
from grpc_api.messages.errors import clear_tracebacks, detail_of
from grpc_api.messages.log import isolation_of
from grpc_api.messages.record_rows import RowEncoder
from grpc_api.partitioning.partitioner import StickyPartitioner, partition_of_key
from grpc_api.proto import log_pb2
from grpc_api.proto import records_pb2 as pb
from grpc_api.proto.records_pb2_grpc import RecordsServicer
from grpc_api.servicers.calls import ANSWER_COPIES, CallContext, in_pieces
from grpc_api.servicers.decoding import SMALL_BYTES, Decoding, Kept
from grpc_api.servicers.fetch_stream import whole_batches
from grpc_api.servicers.fetching import fetched, records_of, release
from grpc_api.servicers.produce_stream import committed
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.errors import InvalidPartitions, InvalidRecord, InvalidRequest, LogError
from storage_tiers.records.builder import build_written_batch
from storage_tiers.records.column_buffers import HEADERS, KEY, OFFSET, TIMESTAMP, VALUE
from storage_tiers.records.columns import ColumnBatch, ColumnDecoder
from storage_tiers.records.decoder import decode
from storage_tiers.records.record_writer import NO_HEADERS, RecordWriter, encode_headers
from storage_tiers.types import AbortedTransaction, TopicPartition

#: Bytes of the records of one batch, uncompressed, unless one record alone has more.
BATCH_BYTES = 256 << 10
#: The most bytes of records (unless one record alone has more) and the most records of one partition in one message of a read.
#: A message that has this many bytes takes no further partition.
MESSAGE_BYTES, MESSAGE_RECORDS = 1 << 20, 8192
#: Bytes of batches that are read at a time to make a message.
READ_BYTES = 256 << 10
#: The longest wait of one fetch for more records, in ms.
WAIT_MS = 10_000

_COLUMNS = OFFSET | TIMESTAMP | KEY | VALUE | HEADERS


class _NewBatch:
    """A batch being built for one partition, and the indexes of its records in the request."""

    __slots__ = ("indexes", "partition", "writer")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.indexes: list[int] = []
        self.writer = RecordWriter()


class _Grouping:
    """Groups the records of one request into batches per partition, in order; `refused` has the answers to refused records, by
    index in the request."""

    def __init__(self, count: int, now_ms: int, rng: Rng) -> None:
        self._count = count
        self._now_ms = now_ms
        self._sticky = StickyPartitioner(BATCH_BYTES, rng)
        self._open: dict[int, _NewBatch] = {}
        self.batches: list[_NewBatch] = []
        self.refused: dict[int, pb.SentRecord] = {}

    async def add_all(self, records: Sequence[pb.RecordToSend]) -> None:
        index = 0
        async for some in in_pieces(records):
            for record in some:
                try:
                    self._add(index, record)
                except LogError as error:
                    self.refused[index] = _refused(error)
                index += 1

    def _add(self, index: int, record: pb.RecordToSend) -> None:
        key = record.key if record.HasField("key") else None
        value = record.value if record.HasField("value") else None
        timestamp = record.timestamp_ms if record.HasField("timestamp_ms") else self._now_ms
        if timestamp < 0:
            raise InvalidRecord(f"a timestamp is a number of ms since 1970, from 0 to 2^63-1, not {timestamp}")
        headers = NO_HEADERS
        if record.headers:
            headers = encode_headers([(h.name, h.value if h.HasField("value") else None) for h in record.headers])
        size = 36 + len(key or b"") + len(value or b"") + len(headers)
        partition = self._partition(record, key, size)
        batch = self._open.get(partition)
        if batch is None or batch.writer.size + size > BATCH_BYTES:
            batch = self._open[partition] = _NewBatch(partition)
            self.batches.append(batch)
        batch.writer.append(key, value, headers, timestamp)
        batch.indexes.append(index)

    def _partition(self, record: pb.RecordToSend, key: bytes | None, size: int) -> int:
        if record.HasField("partition"):
            if not 0 <= record.partition < self._count:
                raise InvalidPartitions(f"the topic has partitions 0 to {self._count - 1}, not {record.partition}")
            return record.partition
        return self._sticky.partition(size, self._count) if key is None else partition_of_key(key, self._count)


class CoreRecords(RecordsServicer):
    """Sends and reads records instead of batches. Records of a call are grouped into batches by partition."""

    def __init__(self, core: Core, clock: Clock | None = None, rng: Rng | None = None) -> None:
        self._core = core
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRng()
        self._decoding = Decoding()

    # --- sending ------------------------------------------------------------------------------------------------------
    async def Send(self, request: pb.SendRequest, context: Any) -> pb.SendResponse:  # noqa: N802
        count, topic, acks = len(request.records), request.topic, request.acks
        if count > MAX_SENT_RECORDS:
            raise InvalidRequest(
                f"a request holds at most {MAX_SENT_RECORDS} records, not {count}: split it into smaller requests"
            )
        grouping = _Grouping(len(self._described(topic).partitions), self._clock.unix_ms(), self._rng)
        await grouping.add_all(request.records)
        del request  # its records are in batches now
        context.forget_request()
        sent = [pb.SentRecord()] * count
        for index, answer in grouping.refused.items():
            sent[index] = answer
        for batch, result in await self._append(topic, grouping.batches):
            known = result if acks == log_pb2.ACKS_LEADER else await committed(result)
            async for some_indexes in in_pieces(range(len(batch.indexes))):
                for at in some_indexes:
                    sent[batch.indexes[at]] = _sent(batch.partition, known, at)
        return pb.SendResponse(records=sent)

    async def _append(
        self, topic: str, batches: Sequence[_NewBatch]
    ) -> Sequence[tuple[_NewBatch, Appended | LogError]]:
        results: list[tuple[_NewBatch, Appended | LogError]] = []
        async for some in in_pieces(batches):
            appends = [
                Append(TopicPartition(topic, batch.partition), memoryview(build_written_batch(batch.writer)))
                for batch in some
            ]
            answers = await settled(self._core.log.append(appends))
            results += zip(some, answers, strict=True)
        return results

    def _described(self, topic: str) -> TopicDescription:
        (found,) = self._core.topics.describe([topic])
        if isinstance(found, LogError):
            raise found
        return found

    # --- reading ------------------------------------------------------------------------------------------------------
    async def Read(self, request: pb.ReadRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        described = self._described(request.topic)
        count = len(described.partitions)
        partitions = sorted(set(request.partitions)) or list(range(count))
        if not 0 <= partitions[0] <= partitions[-1] < count:
            raise InvalidPartitions(f"{request.topic} has partitions 0 to {count - 1}, not {partitions[-1]}")
        if len(partitions) > MAX_FETCH_PARTITIONS:
            raise InvalidRequest(f"a call reads at most {MAX_FETCH_PARTITIONS} partitions: read them in several calls")
        with context.bounds.reading(), context.bounds.following(len(partitions)):
            positions = await self._starts(request, partitions)
            isolation = isolation_of(request.isolation)
            ends = None
            if request.until_end:
                ends = await self._offsets(request.topic, partitions, OffsetSpec.LATEST, isolation)
            reading = _Reading(self._core, described, positions, isolation, ends, self._decoding)
            try:
                await reading.run(context)
            finally:
                reading.close()

    async def _starts(self, request: pb.ReadRequest, partitions: Sequence[int]) -> dict[int, int]:
        start = request.WhichOneof("start")
        if start == "latest" and request.latest:
            return dict(await self._offsets(request.topic, partitions, OffsetSpec.LATEST))
        if start == "from_ms":
            if request.from_ms < 0:
                raise InvalidRequest(f"from_ms is a number of ms since 1970, not {request.from_ms}")
            found = await self._offsets(request.topic, partitions, request.from_ms)
            later = [partition for partition in partitions if partition not in found]
            return {**found, **(await self._offsets(request.topic, later, OffsetSpec.LATEST))}
        given = dict(request.offsets.by_partition) if start == "offsets" else {}
        if unknown := given.keys() - set(partitions):
            raise InvalidRequest(f"offsets names partition {min(unknown)}, which the call does not read")
        rest = [partition for partition in partitions if partition not in given]
        return {**given, **(await self._offsets(request.topic, rest, OffsetSpec.EARLIEST))}

    async def _offsets(
        self, topic: str, partitions: Sequence[int], at: int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, int]:
        """Offsets by partition; partitions without one are left out."""
        found: dict[int, int] = {}
        async for some in in_pieces(partitions):
            queries = [OffsetQuery(TopicPartition(topic, each), at, isolation=isolation) for each in some]
            for partition, answer in zip(some, await self._core.log.list_offsets(queries), strict=True):
                if isinstance(answer, LogError):
                    raise answer
                if answer is not None:
                    found[partition] = answer.offset
        return found


def _refused(error: LogError) -> pb.SentRecord:
    return pb.SentRecord(partition=-1, offset=-1, error=detail_of(error))


def _sent(partition: int, result: Appended | LogError, at: int) -> pb.SentRecord:
    if isinstance(result, LogError):
        return pb.SentRecord(partition=partition, offset=-1, error=detail_of(result))
    return pb.SentRecord(partition=partition, offset=result.base_offset + at)


class _Part(NamedTuple):
    """Batches read from a partition, to be decoded from `start` on."""

    partition: int
    records: bytes
    start: int
    aborted: Sequence[AbortedTransaction]


class _Reading:
    """One read. `positions` holds the next offset of each partition, in the order of their turns; `ends`, if given, the
    offsets where the read stops."""

    def __init__(
        self,
        core: Core,
        topic: TopicDescription,
        positions: dict[int, int],
        isolation: Isolation,
        ends: Mapping[int, int] | None,
        decoding: Decoding,
    ) -> None:
        self._core = core
        self._decoding = decoding
        self._topic = topic
        self._positions = positions
        self._isolation = isolation
        self._ends = ends
        self._kept: dict[int, Kept] = {}
        #: Inflated bytes of batches that are partly sent and not kept, by partition.
        self._cut: dict[int, int] = {}

    async def run(self, context: CallContext) -> None:
        """Returns once all ends are reached. Raises the first failed partition's LogError after sending others' records."""
        while self._wanted():
            await self._room()
            wanted = [each for each in self._wanted() if each not in self._cut]
            async with fetched(self._core.log, self._fetch(wanted), context) as answers:
                parts, failure = await self._parts(wanted, answers)
                release(answers)
                message = await self._message(parts)
            del parts
            if message:
                async with context.bounds.answers.hold(context.peer_name, ANSWER_COPIES * len(message)):
                    await context.write_counted(message)
            if failure is not None:
                clear_tracebacks(failure)
                raise failure

    def _wanted(self) -> list[int]:
        if self._ends is None:
            return list(self._positions)
        return [each for each, position in self._positions.items() if position < self._ends.get(each, 0)]

    def _fetch(self, wanted: Sequence[int]) -> Fetch:
        name, topic_id = self._topic.name, self._topic.topic_id
        return Fetch(
            [
                FetchPartition(TopicPartition(name, each), self._positions[each], READ_BYTES, topic_id=topic_id)
                for each in wanted
            ],
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=READ_BYTES,
            isolation=self._isolation,
        )

    async def _parts(self, wanted: Sequence[int], answers: Sequence[Fetched]) -> tuple[list[_Part], LogError | None]:
        parts: list[_Part] = []
        failure: LogError | None = None
        for partition, answer in zip(wanted, answers, strict=True):
            if answer.error is not None:
                failure = failure or answer.error
            elif answer.slices:
                records = await records_of(answer)
                parts.append(_Part(partition, records, self._positions[partition], answer.aborted or ()))
        return parts, failure

    async def _message(self, parts: Sequence[_Part]) -> bytes:
        """One message of as many parts as it holds; advances their partitions and moves them behind all others."""
        if not parts:
            return b""
        decoders = self._decoders(parts)
        message, decoded = await self._decoding.turn(partial(_encoded, parts, decoders))
        for partition, (position, decoder) in decoded.items():
            del self._positions[partition]
            self._positions[partition] = position
            self._keep(partition, decoder)
        for kept in self._kept.values():
            kept.is_used = False
        return message

    async def _room(self) -> None:
        """Waits for room for one of the batches that must be inflated again. Holds no fetched answer meanwhile, since answers
        have a bound too."""
        for partition in [each for each, kept in self._kept.items() if not kept.is_held]:
            self._cut[partition] = self._kept.pop(partition).size
        again = next((each for each in self._wanted() if each in self._cut), None)
        if again is not None:
            self._kept[again] = await self._decoding.keep(self._cut[again])
            del self._cut[again]

    def _decoders(self, parts: Sequence[_Part]) -> dict[int, _Decoder]:
        """The kept decoders that continue where these parts begin."""
        decoders = {}
        for part in parts:
            kept = self._kept.get(part.partition)
            if kept is not None and kept.decoder is not None and kept.decoder.position == part.start:
                kept.is_used = True
                decoders[part.partition] = kept.decoder
        return decoders

    def _keep(self, partition: int, decoder: _Decoder | None) -> None:
        """Keeps a decoder inside a large batch, if there is room."""
        size = 0 if decoder is None else decoder.held_bytes
        kept = self._kept.get(partition)
        # The size may differ from last time, because a fetch may return the batch with more or fewer others.
        if kept is not None and (size <= SMALL_BYTES or not self._decoding.resize(kept, size)):
            self._decoding.release(self._kept.pop(partition))
            kept = None
        if size <= SMALL_BYTES:
            return
        kept = kept or self._decoding.try_keep(size)
        if kept is None:
            self._cut[partition] = size
        else:
            kept.decoder = decoder
            self._kept[partition] = kept

    def close(self) -> None:
        """Drops the kept batches of the read."""
        while self._kept:
            self._decoding.release(self._kept.popitem()[1])


class _Decoder:
    """Decodes one part, a message's records at a time. `position` is the offset after the last of them."""

    def __init__(self, part: _Part) -> None:
        self.whole, self._following = whole_batches(part.records, part.start)
        self.aborted = part.aborted
        self.position = part.start
        self._decoder = ColumnDecoder(_COLUMNS, max_rows=MESSAGE_RECORDS, max_bytes=MESSAGE_BYTES)
        self._found = self._columns(part.start)

    @property
    def held_bytes(self) -> int:
        """Bytes of the inflated batch that the decoder is reading, and of its compressed form; 0 if there is none."""
        inflated = self._decoder.inflated_bytes
        return inflated + len(self.whole) if inflated else 0

    def next(self) -> ColumnBatch | None:
        """The next records, None at the end of the part."""
        columns, self.position = next(self._found, (None, self._following))
        return columns

    def _columns(self, start: int) -> Iterator[tuple[ColumnBatch, int]]:
        for columns in self._decoder.add(self.whole, start, aborted=self.aborted):
            yield columns, memoryview(columns.offsets).cast("q")[columns.rows - 1] + 1
        for columns in self._decoder.finish():
            yield columns, self._following


def _encoded(
    parts: Sequence[_Part], decoders: Mapping[int, _Decoder], stopped: threading.Event
) -> tuple[bytes, dict[int, tuple[int, _Decoder | None]]]:
    """Returns (encoded ReadResponse, decoded). `decoded` has each partition whose records are in the response or whose markers
    were skipped, with its next offset and its decoder, or None if the decoder holds no inflated batch. Ends early once
    `stopped` is set."""
    pieces: list[bytes] = []
    decoded: dict[int, tuple[int, _Decoder | None]] = {}
    left = MESSAGE_BYTES
    for part in parts:
        if left <= 0 or stopped.is_set():
            break
        decoder = decoders.get(part.partition) or _Decoder(part)
        columns = decoder.next()
        if columns is not None:
            pieces.append(_rows(part.partition, columns, decoder.whole, part.aborted))
            left -= len(pieces[-1])
        decoded[part.partition] = decoder.position, decoder if decoder.held_bytes else None
    return b"".join(pieces), decoded


def _rows(partition: int, columns: ColumnBatch, whole: bytes, aborted: Sequence[AbortedTransaction]) -> bytes:
    if not columns.timestamp_nulls:
        return RowEncoder(partition).encode(columns)
    # Timestamps that do not fit 64 bits of microseconds: the batch is decoded without columns.
    offsets = memoryview(columns.offsets).cast("q")
    response = pb.ReadResponse()
    for each in decode(whole, start_offset=offsets[0], end_offset=offsets[columns.rows - 1] + 1, aborted=aborted):
        headers = [pb.RecordHeader(name=name, value=value) for name, value in each.headers]
        response.records.add(
            partition=partition,
            offset=each.offset,
            timestamp_ms=each.timestamp,
            key=each.key,
            value=each.value,
            headers=headers,
        )
    return response.SerializeToString()
