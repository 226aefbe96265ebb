"""A Produce of many rows gets the same response as a short one, yields between slices, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Append
from grpc_api.contract.topics import NewTopic
from grpc_api.contract.transactions import ProducerTransaction
from kafka_gateway.handlers import produce
from kafka_gateway.handlers.produce import LARGE_BYTES, SLICE_BYTES, SLICE_ROWS, STEP, CommitWait, ProduceHandler
from kafka_gateway.hot_parse import AT_ONCE, HotParser, ProduceReading, ProduceRequest
from kafka_gateway.options import Options
from kafka_gateway.reply import CloseConnection, DelayedReply
from storage_tiers.errors import NotEnoughReplicas
from storage_tiers.turns import AT_WORK, TurnScheduler
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.handler_client import AFTER_CORRELATION, HandlerClient, joined
from tests.kafka_gateway.kio_frames import milliseconds, record_batch, request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.server_support import connected, serving

BATCH = record_batch(b"v")
BROKEN = BATCH[:-1] + b"x"
#: Two existing topics, one of them named twice, and rows refused for every reason, in no particular order.
MIXED: tuple[tuple[str, list[tuple[int, bytes | None]]], ...] = (
    ("b", [(1, BATCH), (0, None), (1, BATCH)]),
    ("unknown", [(0, BATCH), (3, BATCH)]),
    ("a", [(2, BATCH), (0, BROKEN), (7, BATCH)]),
    ("none", []),
    ("b", [(0, BATCH), (1, BATCH)]),
)


class Resting(TurnScheduler):
    """A scheduler whose slices end as soon as they begin, and which counts rests."""

    def __init__(self) -> None:
        hurried = itertools.count()
        super().__init__(lambda: float(next(hurried)))
        self.rests = 0

    async def rest(self) -> None:
        self.rests += 1
        await super().rest()


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[MemoryCore]:
    core = MemoryCore(str(tmp_path))
    yield core
    core.close()


def frame_of(core: MemoryCore, version: int, wanted: Any, **words: Any) -> bytes:
    topics = [
        {
            "name": name,
            "topic_id": core.ids.get(name),
            "partition_data": [{"index": index, "records": records} for index, records in rows],
        }
        for name, rows in wanted
    ]
    return request_frame("produce", version, correlation=1, topic_data=topics, **words)


async def answer_of(handler: ProduceHandler, frame: bytes, version: int) -> bytes:
    """The framed response; if the handler closes the connection, the reason."""
    data = bytearray(frame)
    try:
        reply = handler.handle(data, memoryview(data), AFTER_CORRELATION, len(data), version, 1)
        if isinstance(reply, DelayedReply):
            reply = reply.finish(await reply.future)
        elif asyncio.iscoroutine(reply):
            if len(data) <= LARGE_BYTES:  # a larger request has a buffer of its own
                # Meanwhile the connection receives into its buffer again.
                data[:] = bytes(len(data))
            reply = await reply
    except CloseConnection as closed:
        return str(closed).encode()
    assert not asyncio.iscoroutine(reply) and not isinstance(reply, DelayedReply)
    return joined(reply)


@pytest.mark.parametrize("acks", [-1, 0, 1, 7])
@pytest.mark.parametrize("version", [3, 7, 9, 12])
async def test_answers_are_the_same_in_slices_and_at_once(core: MemoryCore, version: int, acks: int) -> None:
    answers, scheduler = [], Resting()
    for at_once in (AT_ONCE, 0):
        for name in ("a", "b"):
            if name in core.ids:
                await core.delete([name])
            await core.create([NewTopic(name, partitions=3)])
        core.partitions[TopicPartition("b", 0)].committed = refused = asyncio.get_running_loop().create_future()
        refused.set_exception(NotEnoughReplicas("two of three"))
        handler = ProduceHandler(core, Options(scheduler=scheduler))
        handler._parser.at_once = at_once
        frame = frame_of(core, version, MIXED, acks=acks, timeout=milliseconds(5_000))
        sizes = [each.size for each in core.partitions.values()]
        answers.append((await answer_of(handler, frame, version), dict(handler.errors), sizes))
        assert bool(scheduler.rests) == (not at_once)
    first, second = answers
    assert first == second
    if acks in (-1, 1):
        (*topics,) = response("produce", version, first[0][4:]).responses
        assert [topic.name for topic in topics] == [name for name, _ in MIXED]
        assert [[row.index for row in topic.partition_responses] for topic in topics] == [
            [index for index, _ in rows] for _, rows in MIXED
        ]


async def test_a_produce_of_unknown_topics_rests_while_it_is_read_appended_and_answered(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, rows, rests_at = Resting(), 40 * SLICE_ROWS, list[int]()
    append = MemoryCore.append

    def watched(self: MemoryCore, appends: Sequence[Append], **words: ProducerTransaction | None) -> object:
        assert len(appends) <= SLICE_ROWS
        rests_at.append(scheduler.rests)
        return append(self, appends, **words)

    monkeypatch.setattr(MemoryCore, "append", watched)
    frame = frame_of(core, 9, [(f"unknown-{n}", [(0, BATCH)]) for n in range(rows)], acks=1)
    answer = response("produce", 9, (await answer_of(ProduceHandler(core, Options(scheduler=scheduler)), frame, 9))[4:])
    assert [topic.name for topic in answer.responses] == [f"unknown-{n}" for n in range(rows)]
    assert rests_at[0] >= 2 * rows // STEP - 1, "while topics and partitions are read"
    assert all(later > before for before, later in itertools.pairwise(rests_at)), "between two slices"
    assert scheduler.rests - rests_at[-1] >= rows // STEP + rows // SLICE_ROWS, "while batches are counted and written"


class Kept(HotParser):
    """Records the requests that it parses in steps."""

    def __init__(self, parser: HotParser) -> None:
        self._parser = parser
        self.requests: list[ProduceRequest] = []

    def produce(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceRequest | None:
        return self._parser.produce(data, view, start, end, version)

    def reading(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceReading:
        reading = self._parser.reading(data, view, start, end, version)
        self.requests.append(reading.request)
        return reading


@pytest.mark.parametrize("acks", [0, 1, 7])
async def test_objects_of_many_rows_are_freed_before_the_answer_is_sent(core: MemoryCore, acks: int) -> None:
    handler = ProduceHandler(core, Options())
    parser = handler._parser = Kept(handler._parser)
    frame = frame_of(core, 9, [(f"unknown-{n}", [(0, BATCH)]) for n in range(AT_ONCE + 1)], acks=acks)
    assert await answer_of(handler, frame, 9)
    (request,) = parser.requests
    assert (request.topics, request.indexes, request.appends) == ([], [], [])


async def test_a_long_produce_that_is_malformed_at_its_end_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        frame = frame_of(core, 9, [(f"unknown-{n}", [(0, BATCH)]) for n in range(2 * AT_ONCE)], acks=1)
        body = frame[4:-3]
        client.send(len(body).to_bytes(4, "big") + body)
        assert await client.receive() is None
        assert server.counters.failures == 0


async def test_a_refused_batch_of_a_large_produce_without_acks_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (core, server), connected(server) as client:
        client.send(frame_of(core, 9, [("topic", [(index, BATCH) for index in range(2 * AT_ONCE)])], acks=0))
        assert await client.receive() is None
        assert [core.partitions[TopicPartition("topic", index)].next_offset for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize("schema", ["alter_configs", "incremental_alter_configs"])
async def test_a_request_for_many_configs_of_one_resource_rests_between_them(core: MemoryCore, schema: str) -> None:
    scheduler, rows = Resting(), 2_000
    configs = [{"name": f"unknown-{n}", "value": "1"} for n in range(rows)]
    resource = {"resource_type": 2, "resource_name": "none", "configs": configs}
    answer = await HandlerClient(core, Options(scheduler=scheduler)).ask(
        schema, 1, resources=[resource], validate_only=False
    )
    assert [row.resource_name for row in answer.responses] == ["none"]
    assert scheduler.rests > rows


@pytest.fixture
async def never() -> AsyncIterator[asyncio.Future[Any]]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    yield future
    future.cancel()


async def wide(core: MemoryCore, name: str, **words: Any) -> bytes:
    """A Produce to all partitions of a topic, one more than are read at once."""
    await core.create([NewTopic(name, partitions=AT_ONCE + 1)])
    return frame_of(core, 9, [(name, [(index, BATCH) for index in range(AT_ONCE + 1)])], **words)


async def test_waiting_for_many_commits_ends_with_the_time_that_the_request_gives(
    core: MemoryCore, never: asyncio.Future[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout is for the whole request, not for each of its slices."""
    given: list[int] = []

    class Timed(CommitWait):
        def __init__(self, results: Any, timeout_ms: int) -> None:
            given.append(timeout_ms)
            super().__init__(results, timeout_ms)

    monkeypatch.setattr(produce, "CommitWait", Timed)
    frame = await wide(core, "wide", acks=-1, timeout=milliseconds(50))
    for partition in core.partitions.values():
        partition.committed = never
    (topic,) = response("produce", 9, (await answer_of(ProduceHandler(core, Options()), frame, 9))[4:]).responses
    assert {int(row.error_code) for row in topic.partition_responses} == {7}
    assert len(given) > AT_ONCE // SLICE_ROWS
    assert max(given[1:]) <= 1


@pytest.mark.parametrize("waits_for", ["commits", "the core"])
async def test_requests_that_wait_keep_no_other_from_its_turn(
    core: MemoryCore, never: asyncio.Future[Any], monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    append, all_at_work, appended = MemoryCore.append, asyncio.Event(), 0

    def held_back(self: MemoryCore, appends: Sequence[Append], **words: ProducerTransaction | None) -> Any:
        nonlocal appended
        results = append(self, appends, **words)
        if appends[0].partition.topic != "waits":
            return results
        appended += len(appends)
        if appended == AT_WORK * (AT_ONCE + 1):
            all_at_work.set()
        return never if waits_for == "the core" else results

    monkeypatch.setattr(MemoryCore, "append", held_back)
    handler = ProduceHandler(core, Options(scheduler=Resting()))
    stuck, other = await wide(core, "waits", acks=-1, timeout=milliseconds(3_600_000)), await wide(core, "t", acks=1)
    for partition, state in core.partitions.items():
        if partition.topic == "waits":
            state.committed = never
    waiting = [asyncio.ensure_future(answer_of(handler, stuck, 9)) for _ in range(AT_WORK)]
    async with asyncio.timeout(60):
        await all_at_work.wait()
        answer = response("produce", 9, (await answer_of(handler, other, 9))[4:])
    assert {int(row.error_code) for topic in answer.responses for row in topic.partition_responses} == {0}
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_produce_of_large_batches_is_appended_a_few_of_them_at_a_time(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, slices = MemoryCore.append, list[list[int]]()

    def watched(self: MemoryCore, appends: Sequence[Append], **words: ProducerTransaction | None) -> object:
        slices.append([len(each.batch) for each in appends])
        return append(self, appends, **words)

    monkeypatch.setattr(MemoryCore, "append", watched)
    half, larger = record_batch(bytes(SLICE_BYTES // 2)), record_batch(bytes(2 * SLICE_BYTES))
    third = record_batch(bytes(SLICE_BYTES // 3))
    batches = [larger, third, third, half, larger, *[third] * (LARGE_BYTES // len(third))]
    await core.create([NewTopic("t", partitions=len(batches))])
    frame = frame_of(core, 9, [("t", list(enumerate(batches)))], acks=1)
    answer = response("produce", 9, (await answer_of(ProduceHandler(core, Options()), frame, 9))[4:])
    assert {int(row.error_code) for row in answer.responses[0].partition_responses} == {0}
    assert [size for some in slices for size in some] == [len(batch) for batch in batches]
    assert all(len(some) == 1 or sum(some) <= SLICE_BYTES for some in slices)
    assert [len(some) for some in slices[:4]] == [1, 2, 1, 1]
    assert [len(some) for some in slices[4:-1]] == [2] * (len(slices) - 5)


async def test_a_request_that_waits_for_commits_keeps_none_of_its_bytes(
    core: MemoryCore, never: asyncio.Future[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = ProduceHandler(core, Options())
    parser = handler._parser = Kept(handler._parser)
    frame = await wide(core, "waits", acks=-1, timeout=milliseconds(3_600_000))
    for partition in core.partitions.values():
        partition.committed = never
    begun = asyncio.Event()

    class Begun(CommitWait):
        def __init__(self, results: Any, timeout_ms: int) -> None:
            super().__init__(results, timeout_ms)
            begun.set()

    monkeypatch.setattr(produce, "CommitWait", Begun)
    waiting = asyncio.ensure_future(answer_of(handler, frame, 9))
    await begun.wait()
    (request,) = parser.requests
    assert len(request.indexes) == AT_ONCE + 1
    assert request.appends == []
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
