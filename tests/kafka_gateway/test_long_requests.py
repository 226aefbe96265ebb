"""Requests of many rows: others are served meanwhile, work ends when its client leaves, and memory is bounded."""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpc_api.contract.log import Append
from grpc_api.contract.topics import CreatedTopic, NewTopic
from grpc_api.contract.transactions import ProducerTransaction
from kafka_gateway.connection import Piece
from kafka_gateway.errors import ErrorCode
from kafka_gateway.handlers.produce import ProduceHandler
from kafka_gateway.hot_parse import FORGOTTEN_A_REQUEST, HotParser, ProduceReading, ProduceRequest
from kafka_gateway.message_reader import ROWS_A_REQUEST, Endless
from kafka_gateway.message_writer import Writing
from kafka_gateway.options import Options
from storage_tiers.errors import LogError, PolicyViolation
from storage_tiers.turns import AT_WORK, TurnScheduler
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.handler_client import AFTER_CORRELATION, joined
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.server_support import (
    BATCH,
    PARTITION,
    connected,
    metadata,
    produce,
    serving,
    until,
)

MANY = 20_000
#: The number of partitions that a Produce appends in one go.
MANY_PARTITIONS = 500
NAMES = [f"unknown-{n}" for n in range(MANY)]
LONG = {
    "metadata": request_frame(
        "metadata", 9, topics=[{"name": name} for name in NAMES], allow_auto_topic_creation=False
    ),
    "delete_topics": request_frame("delete_topics", 5, topic_names=NAMES),
    "find_coordinator": request_frame("find_coordinator", 4, key_type=0, coordinator_keys=NAMES),
    "describe_groups": request_frame("describe_groups", 5, groups=NAMES, include_authorized_operations=False),
    "delete_groups": request_frame("delete_groups", 2, groups_names=NAMES),
    "offset_fetch": request_frame(
        "offset_fetch",
        8,
        groups=[{"group_id": name, "topics": None} for name in NAMES],
        require_stable=False,
    ),
    "offset_commit": request_frame(
        "offset_commit",
        8,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": "topic",
                "partitions": [
                    {"partition_index": 0, "committed_offset": 1, "committed_metadata": None} for _ in range(MANY)
                ],
            }
        ],
    ),
    "list_offsets": request_frame(
        "list_offsets",
        7,
        replica_id=-1,
        topics=[{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in NAMES],
    ),
}


class Held(TurnScheduler):
    """A scheduler whose slices end as soon as they begin, and whose first resting request resumes only when `go` is set."""

    def __init__(self) -> None:
        hurried = itertools.count()
        super().__init__(lambda: float(next(hurried)))
        self.go = asyncio.Event()
        self._first: asyncio.Task[object] | None = None

    async def rest(self) -> None:
        self._first = self._first or asyncio.current_task()
        if self._first is asyncio.current_task():
            await self.go.wait()
        await super().rest()


@pytest.mark.parametrize("schema", LONG)
async def test_others_are_answered_while_a_long_request_is_worked_on(schema: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as asks_much, connected(server) as asks_little:
        asks_much.send(LONG[schema])
        await until(lambda: server.counters.requests == 1)
        much = asyncio.ensure_future(asks_much.correlation())
        for correlation in range(5):
            asks_little.send(metadata(correlation))
            assert await asks_little.correlation() == correlation
            assert not much.done()
        assert await much == 7


def test_an_answer_ends_where_it_gets_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_gateway.message_writer.ANSWER_BYTES", 100_000)
    writing = Writing(Endless())
    with pytest.raises(PolicyViolation, match="send smaller requests"):
        for _ in range(101):
            writing.encoded(bytes(1000))
            writing.cut()
    assert writing.size <= 101_000 and len(writing.pieces) == 100


def produce_to_each(core: MemoryCore, batch: bytes, correlation: int, acks: int) -> bytes:
    rows = [
        {"index": partition.partition, "records": batch} for partition in core.partitions if partition.topic == "wide"
    ]
    topics = [{"name": "wide", "partition_data": rows}]
    return request_frame("produce", 9, correlation=correlation, acks=acks, topic_data=topics)


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_a_large_produce_is_appended_in_slices_and_overtaken_by_none_behind_it(acks: int, tmp_path: Path) -> None:
    scheduler = Held()
    async with (
        serving(tmp_path, options=Options(scheduler=scheduler)) as (core, server),
        connected(server) as asks_much,
    ):
        await core.create([NewTopic("wide", partitions=40)])
        first, last = core.partitions[TopicPartition("wide", 0)], core.partitions[TopicPartition("wide", 39)]
        async with connected(server) as asks_little:
            large, small = record_batch(bytes(200_000)), record_batch(b"v")
            asks_much.send(produce_to_each(core, large, 1, acks), produce_to_each(core, small, 2, acks), metadata(3))
            await until(lambda: first.next_offset == 1)
            asks_little.send(metadata(5))
            assert await asks_little.correlation() == 5
            assert last.next_offset == 0
            scheduler.go.set()
        for correlation in (1, 2) if acks else ():
            body = await asks_much.receive()
            assert body is not None
            (topic,) = response("produce", 9, body).responses
            rows = [(row.index, int(row.error_code), row.base_offset) for row in topic.partition_responses]
            assert rows == [(index, 0, correlation - 1) for index in range(40)]
        assert await asks_much.correlation() == 3
        assert {core.partitions[TopicPartition("wide", each)].size for each in range(40)} == {len(large) + len(small)}


async def test_a_produce_to_many_partitions_keeps_its_bytes_while_others_are_received(tmp_path: Path) -> None:
    scheduler = Held()
    async with serving(tmp_path, options=Options(scheduler=scheduler)) as (core, server):
        await core.create([NewTopic("wide", partitions=MANY_PARTITIONS + 1)])
        batch = record_batch(bytes(range(50)))
        async with connected(server) as asks_much, connected(server) as asks_little:
            asks_much.send(produce_to_each(core, batch, 1, 1))
            await until(lambda: server.counters.requests == 1)
            asks_little.send(produce(5, batch=record_batch(bytes(60_000))))
            assert await asks_little.correlation() == 5
            assert core.partitions[TopicPartition("wide", MANY_PARTITIONS)].next_offset == 0
            scheduler.go.set()
            body = await asks_much.receive()
        assert body is not None
        rows = response("produce", 9, body).responses[0].partition_responses
        assert {(int(row.error_code), row.base_offset) for row in rows} == {(0, 0)}


class Remembering(HotParser):
    """Records every buffer from which it parses a Produce."""

    def __init__(self, parser: HotParser) -> None:
        self._parser = parser
        self.buffers: list[bytearray] = []

    def produce(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceRequest | None:
        self.buffers.append(data)
        return self._parser.produce(data, view, start, end, version)

    def reading(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceReading:
        self.buffers.append(data)
        return self._parser.reading(data, view, start, end, version)

    def holders(self) -> int:
        """The number of references to the buffers from elsewhere, including views."""
        return sum(sys.getrefcount(self.buffers[place]) - 2 for place in range(len(self.buffers)))


@pytest.mark.parametrize("waits_for", ["the core", "its commit"])
@pytest.mark.parametrize(("partitions", "size"), [(20, 300_000), (MANY_PARTITIONS + 1, 10)], ids=["large", "wide"])
async def test_a_produce_that_waits_for_its_answer_keeps_no_bytes(
    tmp_path: Path, waits_for: str, partitions: int, size: int
) -> None:
    core = MemoryCore(str(tmp_path))
    await core.create([NewTopic("wide", partitions=partitions)])
    handler = ProduceHandler(core, Options())
    parser = handler._parser = Remembering(handler._parser)
    committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if waits_for == "the core":
        core.hold_appends = True
    else:
        for each in core.partitions.values():
            each.committed = committed

    def asked() -> asyncio.Task[Sequence[Piece]]:
        frame = bytearray(produce_to_each(core, record_batch(bytes(size)), 1, -1))
        reply = handler.handle(frame, memoryview(frame), AFTER_CORRELATION, len(frame), 9, 1)
        assert asyncio.iscoroutine(reply)
        return asyncio.create_task(reply)

    answer = asked()
    try:
        await until(lambda: all(each.next_offset for name, each in core.partitions.items() if name.topic == "wide"))
        await until(lambda: parser.holders() == 0)
        assert parser.buffers and not answer.done()
        core.release_appends()
        committed.set_result(None)
        rows = response("produce", 9, joined(await answer)[4:]).responses[0].partition_responses
        assert [int(row.error_code) for row in rows] == [0] * partitions
    finally:
        answer.cancel()
        core.close()


async def test_produces_that_fail_in_the_middle_make_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried, calls, fails, append = itertools.count(), 0, True, MemoryCore.append

    def in_the_second_slice(self: MemoryCore, appends: Sequence[Append], **words: ProducerTransaction | None) -> object:
        nonlocal calls
        calls += 1
        if fails and not calls % 2:
            raise RuntimeError("a defect")
        return append(self, appends, **words)

    monkeypatch.setattr(MemoryCore, "append", in_the_second_slice)
    async with serving(tmp_path, options=Options(scheduler=TurnScheduler(lambda: float(next(hurried))))) as (
        core,
        server,
    ):
        await core.create([NewTopic("wide", partitions=MANY_PARTITIONS + 1)])
        async with connected(server) as client, asyncio.timeout(30):
            for correlation in range(AT_WORK + 1):
                fails = correlation < AT_WORK
                client.send(produce_to_each(core, record_batch(b"v"), correlation, 1))
                body = await client.receive()
                assert body is not None
                rows = response("produce", 9, body).responses[0].partition_responses
                assert {int(row.error_code) != 0 for row in rows} == {fails}


async def test_a_large_produce_reports_each_refused_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        batch, broken = record_batch(bytes(3 << 20)), record_batch(bytes(3 << 20))[:-1] + b"x"
        rows = [{"index": index, "records": each} for index, each in enumerate((broken, batch, batch))]
        client.send(request_frame("produce", 9, acks=-1, topic_data=[{"name": "topic", "partition_data": rows}]))
        body = await client.receive()
        assert body is not None
        codes = [int(row.error_code) for row in response("produce", 9, body).responses[0].partition_responses]
        assert codes == [ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_work_ends_with_its_requester(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka_gateway.server")
    created: list[str] = []
    create = MemoryCore.create

    async def counted(
        core: MemoryCore, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[CreatedTopic | LogError]:
        created.extend(topic.name for topic in topics)
        return await create(core, topics, validate_only=True)

    monkeypatch.setattr(MemoryCore, "create", counted)
    rows = [{"name": f"new-{n}", "num_partitions": 1, "replication_factor": 1} for n in range(MANY)]
    async with serving(tmp_path) as (_, server):
        async with connected(server) as client:
            client.send(request_frame("create_topics", 7, topics=rows))
            await until(lambda: len(created) > 1)
        await until(lambda: server.connections == 0)
        assert "connection.closed" not in caplog.text, "a client that leaves is not logged"
        async with connected(server) as other:
            # If the work continued, it would get every second turn.
            seen = -1
            while seen != len(created):
                seen = len(created)
                for _ in range(20):
                    other.send(metadata())
                    await other.correlation()
        assert 1 < len(created) < MANY


async def test_more_rows_than_one_request_may_have_are_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        names = [f"topic-{n}" for n in range(ROWS_A_REQUEST)]
        # Each resource is one row plus one row for its key: twice as many rows as resources.
        resources = [
            {"resource_type": 2, "resource_name": name, "configuration_keys": ["retention.ms"]} for name in names
        ]
        answer = await client.ask("describe_configs", 4, resources=resources)
        row = answer.results[0]
        assert (row.resource_name, int(row.error_code)) == ("topic-0", ErrorCode.POLICY_VIOLATION)
        assert "split it into smaller requests" in row.error_message
        deleted = await client.ask("delete_topics", 5, topic_names=["topic", *names])
        assert {int(row.error_code) for row in deleted.responses} == {ErrorCode.POLICY_VIOLATION}
        assert deleted.responses[0].name == "topic"
        assert [topic.name for topic in (await client.ask("metadata", 9, topics=None)).topics] == ["topic"]


async def test_pipelined_requests_take_turns_with_others(tmp_path: Path) -> None:
    """Each request is short, but together they are long."""
    some = request_frame("delete_topics", 5, topic_names=NAMES[:200])
    async with serving(tmp_path) as (_, server), connected(server) as asks_much, connected(server) as asks_little:
        asks_much.send(some * 200)
        await until(lambda: server.counters.requests >= 1)
        asks_little.send(metadata(5))
        assert await asks_little.correlation() == 5
        assert server.counters.requests < 200


async def test_answers_that_are_not_read_have_one_bound_together(tmp_path: Path) -> None:
    async with serving(tmp_path, request_memory_bytes=1 << 20) as (_, server), connected(server) as reads:
        async with connected(server) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(8):
                client.send(LONG["find_coordinator"])
            await until(lambda: server.connections == 1)
        reads.send(metadata(3))
        assert await reads.correlation() == 3
        await until(lambda: server.held_bytes == 0)


async def test_a_long_request_that_is_malformed_at_its_end_ends_the_connection(tmp_path: Path) -> None:
    body = LONG["delete_topics"][4:-3]
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(struct.pack(">i", len(body)) + body)
        assert await client.receive() is None
        assert server.counters.failures == 0


def fetch_many(
    count: int, *, correlation: int = 7, wait_ms: int = 0, version: int = 12, session_epoch: int = -1
) -> bytes:
    """A Fetch of a topic's two partitions, of partitions that the topic lacks, and of an absent topic."""
    rows = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for n in range(count)]
    return request_frame(
        "fetch",
        version,
        correlation=correlation,
        replica_id=-1,
        max_wait=milliseconds(wait_ms),
        min_bytes=1,
        session_epoch=session_epoch,
        topics=[{"topic": "topic", "partitions": rows}, {"topic": "absent", "partitions": rows[:1]}],
    )


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_a_fetch_of_many_partitions_is_answered_as_one_of_few(version: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        for partition in (0, 1):
            client.send(produce(1, partition=partition))
            assert await client.correlation() == 1
        answers = []
        for count in (3, 5_000):
            client.send(fetch_many(count, version=version))
            body = await client.receive()
            assert body is not None
            answers.append(response("fetch", version, body))
        few, many = answers
        assert [(topic.topic, len(topic.partitions)) for topic in many.responses] == [("topic", 5_000), ("absent", 1)]
        assert many.responses[0].partitions[:3] == few.responses[0].partitions
        assert many.responses[1] == few.responses[1]
        assert {int(row.error_code) for row in many.responses[0].partitions[2:]} == {3}


async def test_others_are_answered_while_many_partitions_are_fetched(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as asks_much, connected(server) as asks_little:
        asks_much.send(fetch_many(30_000))
        await until(lambda: server.counters.requests == 1)
        much = asyncio.ensure_future(asks_much.correlation())
        for correlation in range(3):
            asks_little.send(metadata(correlation))
            assert await asks_little.correlation() == correlation
            assert not much.done()
        assert await much == 7


async def test_a_session_has_a_bound(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server), connected(server) as client:
        for count, has_session in ((1_000, True), (FORGOTTEN_A_REQUEST + 1, False)):
            client.send(fetch_many(count, session_epoch=0))
            body = await client.receive()
            assert body is not None
            assert bool(response("fetch", 12, body).session_id) == has_session


async def test_the_memory_of_a_delayed_fetch_is_counted(tmp_path: Path) -> None:
    """A delayed Fetch takes 160 KB for 400 partitions, and 20 MB for 50,000."""
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}] * 400
    frame = request_frame(
        "fetch",
        4,
        replica_id=-1,
        max_wait=milliseconds(600_000),
        min_bytes=1,
        topics=[{"topic": "topic", "partitions": rows}],
    )
    bound = 2 * 25 * len(frame)
    async with (
        serving(tmp_path, request_memory_bytes=bound) as (core, server),
        connected(server) as first,
        connected(server) as second,
    ):
        for client in (first, second):
            client.send(frame)
        await until(lambda: len(core.partitions[PARTITION].waiters) == 2)
        assert 2 * 160_000 <= server.held_bytes <= bound
        async with connected(server) as third:
            third.send(frame)
            await until(lambda: server.connections == 2)
        first.writer.close()
        await until(lambda: server.connections == 1)
        core.append([Append(PARTITION, memoryview(BATCH))])
        assert await second.correlation() == 7
        await until(lambda: server.held_bytes == 0)
