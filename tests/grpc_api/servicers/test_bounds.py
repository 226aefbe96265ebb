"""Memory that callers make a node hold is counted until it is sent or freed, and bounded; a stalled caller blocks no other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from grpc_api import limits
from grpc_api.channel import open_channel
from grpc_api.contract.log import Fetch, Fetched, FetchPartition, Isolation
from grpc_api.messages.errors import detail_in
from grpc_api.proto import configs_pb2, log_pb2, offsets_pb2, topics_pb2
from grpc_api.proto.configs_pb2_grpc import ConfigsStub
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.proto.offsets_pb2_grpc import OffsetsStub
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from grpc_api.remote import RemoteCore
from grpc_api.servicers import fetching, topics
from grpc_api.servicers.calls import PIECE
from grpc_api.servicers.fetch_stream import LOOKS_PER_SECOND, _Follower
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import LogError
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.grpc_api.support import Served
from tests.service.broker.support import batch, until
from tests.support.node import Node

MIB = 1 << 20


@pytest.fixture
async def channel(node: Served) -> AsyncIterator[Any]:
    await node.node.create("t")
    async with open_channel(node.address) as opened:
        yield opened


async def fill(node: Served, count: int, size: int = 500_000) -> None:
    big = build_batch([NewRecord(None, os.urandom(size))])
    for _ in range(count):
        await node.node.append_batch("t", big)


def fetch(max_bytes: int = 4 * MIB, **fields: Any) -> log_pb2.FetchRequest:
    wanted = log_pb2.FetchPartition(topic="t", partition=0, max_bytes=max_bytes)
    return log_pb2.FetchRequest(partitions=[wanted], max_bytes=max_bytes, min_bytes=1, **fields)


@contextlib.asynccontextmanager
async def stopped_caller(
    address: str, kind: str, count: int, is_stalled: Callable[[], bool] = lambda: True
) -> AsyncIterator[None]:
    """A process that began `count` calls, read one answer, and stopped itself. If it stopped before it had sent enough calls
    for `is_stalled`, another process replaces it."""
    command = ["-m", "tests.grpc_api.stopped_caller", address, kind, str(count)]
    for _ in range(6):
        process = await asyncio.create_subprocess_exec(sys.executable, *command)
        try:
            await until(lambda: _state(process.pid) == "T")  # noqa: B023
            with contextlib.suppress(TimeoutError):
                await until(is_stalled, 10)
            if is_stalled():
                yield
                return
        finally:
            process.kill()
            await process.wait()
    raise AssertionError("no caller that stopped has stalled its answers")


def _state(process_id: int) -> str:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]


def shrink(node: Served, size: int) -> None:
    node.server.bounds.answers._accounts.limit_bytes = size


# --- answers ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["fetch", "stream"])
async def test_an_answer_is_counted_until_its_caller_has_read_it(node: Served, channel: Any, kind: str) -> None:
    await fill(node, 40)
    answers = node.server.bounds.answers
    async with stopped_caller(node.address, kind, 60, lambda: answers.held_bytes > 20 * MIB):
        assert answers.held_bytes <= answers.limit_bytes
    await until(lambda: answers.held_bytes == 0)
    await until(lambda: node.server.bounds.calls == 0)
    assert node.server.bounds.followed == 0


async def test_a_stalled_caller_holds_at_most_half_and_others_are_served(node: Served, channel: Any) -> None:
    await fill(node, 40)
    shrink(node, 16 * MIB)
    answers = node.server.bounds.answers
    async with stopped_caller(node.address, "fetch", 60, lambda: answers.held_bytes > 6 * MIB):
        for _ in range(20):
            answer = await LogStub(channel).Fetch(fetch(MIB))
            assert next(headers(answer.partitions[0].records))[1].base_offset == 0
        assert answers.held_bytes <= 9 * MIB
        assert answers._accounts.largest_stalled(0.0) is None


async def test_stalled_callers_are_closed_when_others_need_their_memory(
    node: Served, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(node, 40)
    shrink(node, 3 * MIB)
    caplog.set_level(logging.INFO)
    answers = node.server.bounds.answers
    async with (
        stopped_caller(node.address, "stream", 5),
        stopped_caller(node.address, "stream", 5),
        stopped_caller(node.address, "stream", 5),
    ):
        for _ in range(5):
            answer = await LogStub(channel).Fetch(fetch(MIB))
            assert answer.partitions[0].records
        assert answers.held_bytes <= 3 * MIB
    assert "memory.refused" in [getattr(record, "event", "") for record in caplog.records]
    await until(lambda: answers.held_bytes == 0)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
async def test_a_waiting_stream_keeps_none_of_its_sent_answers(node: Served, channel: Any) -> None:
    """This holds whether it waits for records or for memory: sent answers no longer count."""
    await fill(node, 1)
    answers = node.server.bounds.answers
    calls = [LogStub(channel).FetchStream(fetch(MIB)) for _ in range(4)]
    for call in calls:
        assert (await call.read()).partitions[0].records
    partition = node.node.node.broker.partitions.get(TopicPartition("t", 0))
    await until(lambda: len(partition.waiters) == 4)
    assert answers.held_bytes == 0
    assert _bytes_made_by(fetching.__file__) < 100_000

    async with answers.hold("another", answers.limit_bytes):
        await fill(node, 1)
        await until(lambda: len(answers._waiting) == 4)
        assert _bytes_made_by(fetching.__file__) < 100_000
    for call in calls:
        assert (await call.read()).partitions[0].records
        call.cancel()


def _bytes_made_by(path: str) -> int:
    """Bytes that the file allocated and that are still in memory."""
    made = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, path)])
    return sum(each.size for each in made.traces)


async def test_a_batch_that_no_message_holds_is_an_error_in_its_place(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_BATCH_BYTES", 100_000)
    await node.node.append("t", b"small")
    await fill(node, 1)
    log: Any = LogStub(channel)
    assert (await log.Fetch(fetch(1000))).partitions[0].records
    wanted = log_pb2.FetchPartition(topic="t", partition=0, offset=1, max_bytes=1000)
    answer = await log.Fetch(log_pb2.FetchRequest(partitions=[wanted], max_bytes=1000, min_bytes=1))
    assert answer.partitions[0].error.kafka_error == "MESSAGE_TOO_LARGE"
    assert "read it with Kafka's protocol, or continue after it" in answer.partitions[0].error.message
    await node.node.append("t", b"behind")
    behind = log_pb2.FetchPartition(topic="t", partition=0, offset=2, max_bytes=1000)
    answer = await log.Fetch(log_pb2.FetchRequest(partitions=[behind], max_bytes=1000, min_bytes=1))
    assert answer.partitions[0].records and not answer.partitions[0].HasField("error")
    assert [record.offset for record in await node.node.read_all("t")] == [0, 1, 2]


@pytest.mark.parametrize(("kind", "count"), [("fetch", 100), ("stream", 500)])
async def test_a_nodes_memory_stays_bounded_with_clients_that_do_not_read(
    tmp_path: Path, kind: str, count: int
) -> None:
    with Node(tmp_path) as node:
        async with open_channel(node.grpc) as channel:
            await TopicsStub(channel).Create(topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name="t")]))
            large = build_batch([NewRecord(None, os.urandom(900_000))])
            append = log_pb2.Append(topic="t", partition=0, batch=large)
            for _ in range(40):
                await LogStub(channel).Produce(log_pb2.ProduceRequest(appends=[append]))
            before = resident(node)
            async with stopped_caller(node.grpc, kind, count):
                seen = -1
                while seen < (seen := resident(node)):
                    await asyncio.sleep(0.5)
                answer = await LogStub(channel).Fetch(fetch(MIB))
                assert answer.partitions[0].records
            # Each call costs memory besides its answer.
            assert seen - before < limits.ANSWERS_BYTES + count * 256_000 + 64 * MIB


def resident(node: Node) -> int:
    assert node.process is not None
    return int(Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


# --- requests -----------------------------------------------------------------------------------------------------------
async def test_a_request_is_counted_from_before_it_is_read(node: Served, channel: Any) -> None:
    requests = node.server.bounds.requests
    half_sent = channel.stream_stream("/tidelog.v1.Log/Produce")()
    await half_sent.wait_for_connection()
    await until(lambda: requests.held_bytes == limits.MAX_REQUEST_BYTES)
    half_sent.cancel()
    await until(lambda: requests.held_bytes == 0)


async def test_appended_records_do_not_occupy_memory_until_the_commit(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = node.node.log.append
    never: list[asyncio.Future[None]] = []

    def uncommitted(appends: Any, **fields: Any) -> Any:
        answers: Any = append(appends, **fields)
        for answer in answers:
            answer.committed = asyncio.get_running_loop().create_future()
            never.append(answer.committed)
        return answers

    monkeypatch.setattr(type(node.node.log), "append", lambda _, appends, **fields: uncommitted(appends, **fields))
    request = log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="t", partition=0, batch=batch(b"x" * 100_000))])
    call = LogStub(channel).Produce(request)
    await until(lambda: len(never) == 1)
    assert node.server.bounds.requests.held_bytes == 0
    never[0].set_result(None)
    assert (await call).results[0].committed


@pytest.mark.parametrize(
    ("bound", "value", "words"),
    [
        ("MAX_CALLS", 3, "calls are in progress"),
        ("MAX_PRODUCE_STREAMS", 3, "share one among your producers"),
        ("MAX_FOLLOWED", 3, "reads wait for 3"),
    ],
)
async def test_beyond_a_bound_calls_are_refused_at_once_and_retriably(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, words: str
) -> None:
    monkeypatch.setattr(limits, bound, value)
    log: Any = LogStub(channel)

    def begun() -> Any:
        return log.FetchStream(fetch()) if bound == "MAX_FOLLOWED" else log.ProduceStream()

    calls = [begun() for _ in range(value)]
    counted = node.server.bounds
    await until(lambda: value in (counted.calls, counted.produce_streams, counted.followed))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await begun().read()
    detail = detail_in(refused.value.trailing_metadata())
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert detail is not None and detail.retriable and detail.kafka_error == "THROTTLING_QUOTA_EXCEEDED"
    assert words in detail.message
    for call in calls:
        call.cancel()
    await until(lambda: counted.calls == 0)


async def test_the_more_streams_follow_the_longer_each_may_be_silent() -> None:
    wanted = [FetchPartition(TopicPartition("t", each), 0, 1) for each in range(100)]
    follower = _Follower(Fetch(wanted, 100, 1, 1, Isolation(0)))
    assert follower.next_fetch(100).max_wait_ms == 0
    await follower.parts([Fetched(None, 0, 0, 0)] * 100)
    assert follower.next_fetch(100).max_wait_ms == 100
    assert follower.next_fetch(100_000).max_wait_ms == 100_000 * 1000 // LOOKS_PER_SECOND


async def test_an_idle_check_rebuilds_nothing_for_a_streams_partitions() -> None:
    """New objects that survive make garbage collections longer, which every caller waits for."""
    wanted = [FetchPartition(TopicPartition("t", each), 0, 1) for each in range(100)]
    follower = _Follower(Fetch(wanted, 100, 1, 1, Isolation(0)))
    silence = [Fetched(None, 0, 0, 0)] * 100
    assert len((await follower.parts(silence))[0]) == 100
    kept = (*follower.next_fetch(100).partitions, *follower._answered)
    assert await follower.parts(silence) == ([], None)
    assert list(map(id, (*follower.next_fetch(100).partitions, *follower._answered))) == list(map(id, kept))
    assert list(map(id, kept[:100])) == list(map(id, wanted))


# --- turns --------------------------------------------------------------------------------------------------------------
async def test_many_rows_are_worked_on_some_at_a_time(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def counting(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(first: Any, *rest: Any, **fields: Any) -> Any:
            rows.append(len(first or ()) or len(rest[0]) if rest else len(first or ()))
            return original(first, *rest, **fields)

        monkeypatch.setattr(owner, name, counted)

    catalogue, log = node.node.core.topics, node.node.core.log
    for owner, name in ((catalogue, "delete"), (catalogue, "describe"), (catalogue, "create"), (log, "list_offsets")):
        counting(owner, name)
    counting(log, "append")
    names = [f"unknown-{number}" for number in range(300)]
    await TopicsStub(channel).Delete(topics_pb2.DeleteTopicsRequest(names=names))
    await TopicsStub(channel).Describe(topics_pb2.DescribeTopicsRequest(names=names, topic_ids=[b"x" * 16] * 300))
    wanted = [topics_pb2.NewTopic(name=name, partitions=1) for name in names]
    made = await TopicsStub(channel).Create(topics_pb2.CreateTopicsRequest(topics=wanted, validate_only=True))
    queries = [offsets_pb2.OffsetQuery(topic=name) for name in names]
    found = await OffsetsStub(channel).List(offsets_pb2.ListOffsetsRequest(queries=queries))
    appends = [log_pb2.Append(topic=name) for name in names]
    results = await LogStub(channel).Produce(log_pb2.ProduceRequest(appends=appends))
    assert len(made.topics) == len(found.offsets) == len(results.results) == 300
    assert sum(rows) == 6 * 300
    assert max(rows) <= PIECE


async def test_streams_that_wake_together_take_turns_of_the_loop(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.node.create("wide", partitions=2 * PIECE)
    turns: list[int] = []
    turn = 0
    parts, count = _Follower.parts, 20

    async def counting(self: _Follower, answers: list[Fetched]) -> Any:
        turns.append(turn)
        return await parts(self, answers)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    wanted = [log_pb2.FetchPartition(topic="wide", partition=each, max_bytes=MIB) for each in range(2 * PIECE)]
    request = log_pb2.FetchRequest(partitions=wanted, max_wait_ms=100_000, max_bytes=MIB)
    calls = [LogStub(channel).FetchStream(request) for _ in range(count)]
    for call in calls:
        assert len((await call.read()).partitions) == 2 * PIECE
    watched = node.node.node.broker.partitions.get(TopicPartition("wide", 7)).waiters
    await until(lambda: len(watched) == count)
    monkeypatch.setattr(_Follower, "parts", counting)
    counter = asyncio.ensure_future(count_turns())
    await node.node.append("wide", b"x", partition=7)
    for call in calls:
        assert [part.index for part in (await call.read()).partitions] == [7]
        call.cancel()
    counter.cancel()
    assert len(turns) == len(set(turns)) == count


async def test_a_topic_that_is_named_a_thousand_times_is_described_some_at_a_time(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mention of the topic counts as a row, and so does each of its partitions."""
    await node.node.create("wide", partitions=100)
    hurried = itertools.count()
    shared = TurnScheduler(lambda: float(next(hurried)))
    monkeypatch.setattr("grpc_api.servicers.calls.scheduler", lambda: shared, raising=False)
    request = topics_pb2.DescribeTopicsRequest(names=["wide"] * 50)
    describing = asyncio.ensure_future(topics.CoreTopics(node.node.core).Describe(request, None))
    turns = 0
    while not describing.done():
        await asyncio.sleep(0)
        turns += 1
    assert [len(each.topic.partitions) for each in describing.result().topics] == [100] * 50
    assert turns > 50 * (100 // PIECE)


async def test_an_update_of_many_topics_comes_in_parts_and_is_seen_whole(
    node: Served, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS_A_MESSAGE", 2)
    for name in "abcd":
        await node.node.create(name)
    call = TopicsStub(channel).Watch(topics_pb2.WatchRequest())
    updates = [await call.read() for _ in range(3)]
    call.cancel()
    assert [(len(each.topics), each.complete, each.more) for each in updates] == [
        (2, True, True),
        (2, False, True),
        (1, False, False),
    ]
    async with RemoteCore.connect(node.address, clock=SystemClock(), rng=SystemRng()) as core:
        described = [each for each in core.topics.describe(None) if not isinstance(each, LogError)]
        assert {each.name for each in described} == {"t", *"abcd"}


# --- refusals -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _errors_alive() -> int:
    return sum(isinstance(each, (LogError, grpc.aio.AbortError)) for each in gc.get_objects())


@pytest.mark.usefixtures("uncollected")
async def test_refusals_leave_nothing_for_the_collector(node: Served, channel: Any) -> None:
    names = [f"unknown-{number}" for number in range(200)]
    resource = configs_pb2.Resource(kind=2, name="nothing")
    partition = log_pb2.FetchPartition(topic="nothing", partition=0, max_bytes=1)
    before = _errors_alive()
    for _ in range(5):
        await TopicsStub(channel).Delete(topics_pb2.DeleteTopicsRequest(names=names))
        await TopicsStub(channel).Describe(topics_pb2.DescribeTopicsRequest(names=names))
        await LogStub(channel).Produce(
            log_pb2.ProduceRequest(appends=[log_pb2.Append(topic=name, batch=b"x" * 100) for name in names])
        )
        await LogStub(channel).Fetch(log_pb2.FetchRequest(partitions=[partition] * 200, max_bytes=1))
        await OffsetsStub(channel).List(
            offsets_pb2.ListOffsetsRequest(queries=[offsets_pb2.OffsetQuery(topic=name) for name in names])
        )
        for refused in (
            ConfigsStub(channel).Describe(configs_pb2.DescribeConfigsRequest(resource=resource)),
            OffsetsStub(channel).DeleteRecords(offsets_pb2.DeleteRecordsRequest(topic="nothing")),
            TopicsStub(channel).Create(topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name="?")] * 501)),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await refused
    await until(lambda: _errors_alive() <= before + 10)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_cancelled_calls_leave_nothing_in_the_log(
    node: Served, channel: Any, caplog: pytest.LogCaptureFixture, turns: int
) -> None:
    await fill(node, 10)
    log: Any = LogStub(channel)
    unknown = log_pb2.FetchRequest(partitions=[log_pb2.FetchPartition(topic="no")] * 100, max_wait_ms=-1)
    for _ in range(40):
        calls = [log.Fetch(fetch()), log.FetchStream(fetch()), log.ProduceStream(), log.Fetch(unknown)]
        calls += [log.Fetch(fetch(), timeout=0.001), TopicsStub(channel).Watch(topics_pb2.WatchRequest())]
        for _ in range(turns):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
    await until(lambda: node.server.bounds.calls == 0)
    said = [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info]
    assert [record.getMessage() for record in said] == []
