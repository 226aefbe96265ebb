"""Produce: the meaning of each `acks` value, and the error for each refusal, in every version."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from kafka_gateway.reply import CloseConnection, DelayedReply
from storage_tiers.errors import InvalidTimestamp, NotEnoughReplicas, RecordFault
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.handler_client import HandlerClient, joined
from tests.kafka_gateway.kio_frames import milliseconds, record_batch
from tests.kafka_gateway.memory_core import MemoryCore

BATCH = record_batch(b"a", b"b")
VERSIONS = range(3, 14)


def topics(core: MemoryCore, version: int, rows: list[tuple[int, bytes | None]], name: str = "first") -> list[Any]:
    known = core.ids.get(name)
    topic_id = uuid.UUID(bytes=bytes(known)) if known else uuid.UUID(int=9)
    partitions = [{"index": index, "records": records} for index, records in rows]
    return [{"name": name, "topic_id": topic_id, "partition_data": partitions}]


def rows_of(answer: Any) -> list[tuple[int, int, int]]:
    return [
        (row.index, int(row.error_code), row.base_offset)
        for topic in answer.responses
        for row in topic.partition_responses
    ]


@pytest.mark.parametrize("version", VERSIONS)
async def test_batches_are_appended_and_answered_in_order(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    wanted = topics(core, version, [(2, BATCH), (0, BATCH)]) + topics(core, version, [(0, BATCH)], "second")
    answer = await handlers.ask("produce", version, acks=1, topic_data=wanted)
    assert rows_of(answer) == [(2, 0, 0), (0, 0, 0), (0, 0, 0)]
    answer = await handlers.ask("produce", version, acks=-1, topic_data=wanted)
    assert rows_of(answer) == [(2, 0, 2), (0, 0, 2), (0, 0, 2)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_each_partition_has_its_own_error(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    corrupt = BATCH[:-1] + b"?"
    wanted = topics(core, version, [(0, None), (1, corrupt), (2, BATCH), (7, BATCH)])
    answer = await handlers.ask("produce", version, acks=1, topic_data=wanted)
    assert rows_of(answer) == [(0, 87, -1), (1, 2, -1), (2, 0, 0), (7, 3, -1)]
    if version >= 8:
        assert answer.responses[0].partition_responses[3].error_message == "first-7 does not exist"


async def test_a_topic_that_does_not_exist_by_name_or_by_id_is_refused(
    handlers: HandlerClient, core: MemoryCore
) -> None:
    answer = await handlers.ask("produce", 12, acks=1, topic_data=topics(core, 12, [(0, BATCH)], "none"))
    assert rows_of(answer) == [(0, 3, -1)]
    answer = await handlers.ask("produce", 13, acks=1, topic_data=topics(core, 13, [(0, BATCH)], "none"))
    assert rows_of(answer) == [(0, 100, -1)]


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_are_refused_and_nothing_is_appended(
    handlers: HandlerClient, core: MemoryCore, acks: int
) -> None:
    answer = await handlers.ask("produce", 9, acks=acks, topic_data=topics(core, 9, [(0, BATCH), (1, None)]))
    assert rows_of(answer) == [(0, 21, -1), (1, 21, -1)]
    assert core.partitions[TopicPartition("first", 0)].next_offset == 0


async def test_acks_0_has_no_answer_and_an_error_ends_the_connection(handlers: HandlerClient, core: MemoryCore) -> None:
    assert await handlers.answer("produce", 9, acks=0, topic_data=topics(core, 9, [(0, BATCH)])) == b""
    assert core.partitions[TopicPartition("first", 0)].next_offset == 2
    with pytest.raises(CloseConnection, match="first-9 does not exist"):
        await handlers.answer("produce", 9, acks=0, topic_data=topics(core, 9, [(9, BATCH)]))
    with pytest.raises(CloseConnection, match="no record batch"):
        await handlers.answer("produce", 9, acks=0, topic_data=topics(core, 9, [(0, None)]))


async def test_an_empty_request_has_an_empty_answer(handlers: HandlerClient) -> None:
    assert rows_of(await handlers.ask("produce", 9, acks=1, topic_data=[])) == []


async def test_acks_all_waits_for_the_commit_of_every_partition(handlers: HandlerClient, core: MemoryCore) -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    core.partitions[TopicPartition("first", 0)].committed = first
    core.partitions[TopicPartition("first", 1)].committed = second
    reply = handlers.begin("produce", 9, acks=-1, topic_data=topics(core, 9, [(0, BATCH), (1, BATCH), (2, BATCH)]))
    assert isinstance(reply, DelayedReply)
    first.set_result(None)
    await asyncio.sleep(0)
    assert not reply.future.done()
    second.set_exception(NotEnoughReplicas("one is gone"))
    results = await reply.future
    assert [type(result).__name__ for result in results] == ["Appended", "NotEnoughReplicas", "Appended"]
    assert joined(reply.finish(results))


async def test_acks_1_does_not_wait_for_the_commit(handlers: HandlerClient, core: MemoryCore) -> None:
    core.partitions[TopicPartition("first", 0)].committed = asyncio.get_running_loop().create_future()
    answer = await handlers.ask("produce", 9, acks=1, topic_data=topics(core, 9, [(0, BATCH)]))
    assert rows_of(answer) == [(0, 0, 0)]


async def test_an_uncommitted_batch_times_out_and_stays_in_the_log(handlers: HandlerClient, core: MemoryCore) -> None:
    core.partitions[TopicPartition("first", 0)].committed = asyncio.get_running_loop().create_future()
    wanted = topics(core, 9, [(0, BATCH), (1, BATCH)])
    answer = await handlers.ask("produce", 9, acks=-1, timeout=milliseconds(1), topic_data=wanted)
    assert rows_of(answer) == [(0, 7, -1), (1, 0, 0)]
    assert core.partitions[TopicPartition("first", 0)].next_offset == 2


async def test_a_failure_of_the_core_is_an_answer(
    handlers: HandlerClient, core: MemoryCore, caplog: pytest.LogCaptureFixture
) -> None:
    core.fail_appends_with = ZeroDivisionError("secret")
    failing = HandlerClient(core)
    answer = await failing.ask("produce", 9, acks=1, topic_data=topics(core, 9, [(0, BATCH)]))
    assert rows_of(answer) == [(0, -1, -1)]
    assert "secret" not in answer.responses[0].partition_responses[0].error_message
    assert "ZeroDivisionError" in caplog.text


async def test_an_answer_that_the_core_holds_back_is_waited_for(core: MemoryCore) -> None:
    core.hold_appends = True
    throttled = HandlerClient(core)
    reply = throttled.begin("produce", 9, acks=1, topic_data=topics(core, 9, [(0, BATCH)]))
    assert isinstance(reply, DelayedReply)
    assert not reply.future.done()
    core.release_appends()
    assert len(await reply.future) == 1
    core.hold_appends = True
    waiting = core.partitions[TopicPartition("first", 0)].committed = asyncio.get_running_loop().create_future()
    reply = throttled.begin("produce", 9, acks=-1, topic_data=topics(core, 9, [(0, BATCH)]))
    core.release_appends()
    await asyncio.sleep(0)
    assert not reply.future.done()
    waiting.set_result(None)
    assert (await reply.future)[0].base_offset == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_records_at_fault_are_named_from_version_8_on(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    error = InvalidTimestamp("two of them", [RecordFault(0, "too early"), RecordFault(300, "too late")])
    error.log_start_offset = 17
    core.fail_appends_with = error
    answer = await handlers.ask("produce", version, acks=1, topic_data=topics(core, version, [(0, BATCH)]))
    (row,) = answer.responses[0].partition_responses
    assert (int(row.error_code), row.base_offset) == (32, -1)
    if version >= 5:
        assert row.log_start_offset == 17
    if version >= 8:
        named = [(fault.batch_index, fault.batch_index_error_message) for fault in row.record_errors]
        assert named == [(0, "too early"), (300, "too late")]
        assert row.error_message == "two of them"
