"""The SDK when the node goes away, forgets, or refuses: no record is repeated or silently lost, and no call waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from grpc.aio._call import StreamStreamCall

from grpc_api.contract.log import Append
from grpc_api.sdk.client import Client
from grpc_api.sdk.producer import Producer
from grpc_api.sdk.values import Acks, ProducerOptions, ReaderOptions, Sent
from storage_tiers.errors import (
    InvalidRequest,
    LeaderNotAvailable,
    LogError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from tests.grpc_api.support import Served
from tests.service.broker.support import until

UNTIL_END = ReaderOptions(until_end=True)


async def values_of(client: Client, topic: str = "t") -> list[bytes | None]:
    return [message.value async for message in client.reader(topic, options=UNTIL_END)]


async def send_all(producer: Producer, count: int, start: int = 0) -> list[asyncio.Future[Sent]]:
    return [await producer.send("t", b"%d" % number) for number in range(start, start + count)]


class Answers:
    """Wraps a core's `append`, and changes its answers."""

    def __init__(self, node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[LogError | str] = []
        self.calls = 0
        original = node.node.log.append

        def append(_: Any, appends: Sequence[Append], **fields: Any) -> Any:
            self.calls += 1
            step = self.plan.pop(0) if self.plan else "pass"
            if isinstance(step, LogError):
                return [step] * len(appends)
            answers: Any = original(appends, **fields)
            if step == "lose":
                # The batch is appended, but its answer never comes: the channel ends before it.
                for answer in answers:
                    answer.committed = asyncio.get_running_loop().create_future()
            return answers

        monkeypatch.setattr(type(node.node.log), "append", append)


async def test_after_a_lost_answer_the_retry_leaves_one_record(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = ["pass", "lose"]
    async with client.producer(ProducerOptions(linger_s=0.0)) as producer:
        await (await producer.send("t", b"first"))
        lost = await producer.send("t", b"lost")
        await until(lambda: answers.calls == 2)
        await node.close_connection()
        await node.come_back()
        assert (await lost).offset == 1
        assert (await (await producer.send("t", b"after"))).offset == 2
    assert await values_of(client) == [b"first", b"lost", b"after"]


async def test_a_write_that_meets_the_end_of_its_channel_is_repeated(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC reports INTERNAL, with its own text, when the batch of a write fails before the call's end is known."""
    await client.create_topic("t")
    original = StreamStreamCall.write
    broken: list[Any] = []

    async def write(call: Any, message: Any) -> None:
        await original(call, message)
        if message.HasField("produce") and not broken:
            broken.append(call)
            call._cython_call.set_internal_error("the batch failed")
            await call._raise_for_status()

    monkeypatch.setattr(StreamStreamCall, "write", write)
    async with client.producer() as producer:
        sent = [await future for future in await send_all(producer, 3)]
    assert broken
    assert sorted(each.offset for each in sent) == [0, 1, 2]
    assert await values_of(client) == [b"0", b"1", b"2"]


async def test_without_idempotence_a_lost_answer_may_duplicate_a_record_but_never_loses_it(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = ["lose"]
    async with client.producer(ProducerOptions(linger_s=0.0, idempotent=False)) as producer:
        lost = await producer.send("t", b"lost")
        await until(lambda: answers.calls == 1)
        await node.close_connection()
        await node.come_back()
        assert (await lost).offset == 1
    assert await values_of(client) == [b"lost", b"lost"]


async def test_restarts_of_the_node_lose_and_duplicate_nothing(node: Served, client: Client) -> None:
    await client.create_topic("t", partitions=3)
    sent: list[asyncio.Future[Sent]] = []
    async with client.producer(ProducerOptions(batch_bytes=2000, linger_s=0.001)) as producer:
        for round_ in range(5):
            sent += await send_all(producer, 400, 400 * round_)
            await node.close_connection()
            sent += await send_all(producer, 100, 10_000 + 100 * round_)
            await node.come_back()
        await producer.flush()
    assert all(future.exception() is None for future in sent)
    found = await values_of(client)
    assert len(found) == len(set(found)) == 2500


async def test_transient_errors_are_retried_in_order(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = [NotEnoughReplicas("wait"), NotEnoughReplicas("wait"), "pass", NotEnoughReplicas("wait")]
    async with client.producer(ProducerOptions(linger_s=0.0, batch_bytes=500)) as producer:
        sent = await send_all(producer, 50)
        await producer.flush()
    assert [future.result().offset for future in sent] == list(range(50))
    assert await values_of(client) == [b"%d" % number for number in range(50)]


async def test_a_node_that_forgot_the_producer_costs_one_batch_and_no_more(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = ["pass", OutOfOrderSequence("sequence 1 is not known")]
    async with client.producer(ProducerOptions(linger_s=0.0)) as producer:
        await (await producer.send("t", b"a"))
        with pytest.raises(OutOfOrderSequence):
            await (await producer.send("t", b"b"))
        assert (await (await producer.send("t", b"c"))).offset == 1
    assert await values_of(client) == [b"a", b"c"]


async def test_the_error_of_a_timed_out_record_says_whether_it_may_be_in_the_log(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = ["lose"]
    options = ProducerOptions(linger_s=0.0, delivery_timeout_s=2.0)
    async with client.producer(options) as producer:
        flew = await producer.send("t", b"flew")
        await until(lambda: answers.calls == 1)
        with pytest.raises(RequestTimedOut, match="may or may not be in the log"):
            await flew
        # The producer has a new identity: the next record counts neither as a duplicate nor as out of order.
        assert (await (await producer.send("t", b"next"))).offset == 1


async def test_without_a_node_records_fail_at_their_delivery_timeout(node: Served, client: Client) -> None:
    await client.create_topic("t")
    await node.close_connection()
    async with client.producer(ProducerOptions(delivery_timeout_s=0.3)) as producer:
        sent = await send_all(producer, 3)
        for future in sent:
            with pytest.raises(RequestTimedOut, match=r"0\.3 s, the records were not sent"):
                await future


async def test_a_full_buffer_holds_senders_until_there_is_room(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    answers = Answers(node, monkeypatch)
    answers.plan = [NotEnoughReplicas("wait")] * 3
    options = ProducerOptions(linger_s=0.0, batch_bytes=2_000, buffer_bytes=10_000)
    async with client.producer(options) as producer:
        most = 0
        for _ in range(100):
            await producer.send("t", b"x" * 900)
            most = max(most, producer._accumulator.buffer.held_bytes)
        assert most <= 10_000
        huge = await producer.send("t", b"x" * 50_000)  # larger than the whole buffer: sent alone
        assert (await huge).offset == 100


async def test_an_acknowledgement_by_the_leader_does_not_wait_for_the_commit(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    Answers(node, monkeypatch).plan = ["lose"]
    async with client.producer(ProducerOptions(acks=Acks.LEADER, idempotent=False)) as producer:
        assert (await (await producer.send("t", b"x"))).offset == 0


async def test_a_closed_producer_refuses_records(client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await producer.send("t", b"x")
    with pytest.raises(InvalidRequest, match="closed"):
        await producer.send("t", b"y")
    assert await values_of(client) == [b"x"]


async def test_a_topic_deleted_meanwhile_is_named_at_the_timeout(
    node: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer asks again until its timeout, because a new topic is not known everywhere at once."""
    await client.create_topic("t")
    Answers(node, monkeypatch).plan = [
        UnknownTopicOrPartition("t-0") for _ in range(1000)
    ]  # the error of a deleted topic
    async with client.producer(ProducerOptions(linger_s=0.0, delivery_timeout_s=0.5)) as producer:
        doomed = await producer.send("t", b"x")
        await client.delete_topic("t")
        with pytest.raises(RequestTimedOut, match="t-0"):
            await doomed
        with pytest.raises(UnknownTopicOrPartition):
            await producer.send("t", b"y")


# --- reading ----------------------------------------------------------------------------------------------------------
async def test_a_reader_continues_at_its_position_when_the_node_returns(node: Served, client: Client) -> None:
    await client.create_topic("t")
    async with client.producer() as producer:
        await send_all(producer, 1000)
    reader = client.reader("t", options=ReaderOptions(until_end=True, fetch_bytes=2000))
    found = [await anext(reader) for _ in range(300)]
    await node.close_connection()
    back = asyncio.get_running_loop().create_task(_later(node))
    found += [message async for message in reader]
    await back
    assert [message.offset for message in found] == list(range(1000))


async def _later(node: Served) -> None:
    await asyncio.sleep(0.2)
    await node.come_back()


async def test_a_reader_fails_when_the_node_is_away_too_long(node: Served, client: Client) -> None:
    await client.create_topic("t")
    reader = client.reader("t", options=ReaderOptions(retry_s=0.2))
    await node.close_connection()
    with pytest.raises(LeaderNotAvailable, match=node.address):
        await anext(reader)


async def test_a_cancelled_read_loses_nothing(client: Client) -> None:
    await client.create_topic("t")
    reader = client.reader("t")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.05)
    async with client.producer() as producer:
        await send_all(producer, 10)
    assert [(await anext(reader)).offset for _ in range(10)] == list(range(10))
    await reader.close()


async def test_clients_leave_no_task_behind(node: Served) -> None:
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        async with Client.connect(node.address) as client:
            if not client.topics():
                await client.create_topic("t")
            async with client.producer() as producer:
                await send_all(producer, 10)
            reader = client.reader("t")
            await anext(reader)
            await reader.close()
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
