"""Transactions of the SDK: what is committed together, what an abort leaves, and what a fenced producer learns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import IllegalGeneration, InvalidTransactionTimeout, ProducerFenced
from grpc_api.sdk.client import Client
from grpc_api.sdk.transactional import TransactionalProducer
from grpc_api.sdk.values import ConsumerOptions, ProducerOptions, ReaderOptions
from storage_tiers.errors import (
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidRequest,
    LogError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicPartition
from tests.grpc_api.support import Served, served

CALLER = Caller("User:ANONYMOUS", "test", "")
UNTIL_END = ReaderOptions(until_end=True)
DIRTY = ReaderOptions(until_end=True, committed_only=False)
BY_HAND = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=None)
S0 = TopicPartition("source", 0)


class Stop(Exception):
    """An exception of the program itself."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    async with served(tmp_path / "data", broker=settings) as started:
        yield started


@pytest.fixture
async def producer(client: Client) -> AsyncIterator[TransactionalProducer]:
    """A producer of the transactional id "x"; there is a topic "t" of two partitions."""
    await client.create_topic("t", partitions=2)
    async with client.transactional_producer("x") as made:
        yield made


async def values(client: Client, topic: str = "t", options: ReaderOptions = UNTIL_END) -> list[bytes | None]:
    return sorted(
        (message.value for message in [each async for each in client.reader(topic, options=options)]), key=str
    )


async def committed(client: Client, *expected: bytes) -> None:
    """Returns once readers of committed records see these and no others, because markers follow a commit."""
    async with asyncio.timeout(60):
        while await values(client) != sorted(expected):
            await asyncio.sleep(0.005)


async def ended(client: Client, state: str) -> None:
    async with asyncio.timeout(60):
        while (await client._core.transactions.describe("x", CALLER)).state != state:
            await asyncio.sleep(0.005)


async def test_records_of_a_block_are_read_once_it_is_committed(
    client: Client, producer: TransactionalProducer
) -> None:
    async with producer.transaction() as transaction:
        sent = [await transaction.send("t", b"%d" % number, partition=number % 2) for number in range(10)]
        await producer.records.flush()
        assert [each.result().offset for each in sent] == [number // 2 for number in range(10)]
        assert await values(client) == []
        assert len(await values(client, options=DIRTY)) == 10
    await committed(client, *(b"%d" % number for number in range(10)))
    async with producer.transaction() as transaction:
        await transaction.send("t", b"last", partition=0)
    await committed(client, *(b"%d" % number for number in range(10)), b"last")


async def test_a_block_that_ends_by_an_exception_is_aborted(client: Client, producer: TransactionalProducer) -> None:
    for after in (b"one", b"two"):
        with pytest.raises(Stop):
            async with producer.transaction() as transaction:
                await (await transaction.send("t", b"lost", partition=0))
                waiting = await transaction.send("t", b"never sent", partition=1)
                raise Stop
        with pytest.raises(InvalidRequest, match="its transaction is aborted"):
            await waiting
        async with producer.transaction() as transaction:
            await transaction.send("t", after, partition=0)
    await committed(client, b"one", b"two")
    assert await values(client, options=DIRTY) == [b"lost", b"lost", b"one", b"two"]


async def test_a_transaction_without_records_changes_nothing(client: Client, producer: TransactionalProducer) -> None:
    async with producer.transaction():
        pass
    with pytest.raises(Stop):
        async with producer.transaction():
            raise Stop
    assert (await client._core.transactions.describe("x", CALLER)).state == "Empty"


async def test_a_cancelled_block_is_aborted(client: Client, producer: TransactionalProducer) -> None:
    begun = asyncio.Event()

    async def program() -> None:
        async with producer.transaction() as transaction:
            await (await transaction.send("t", b"lost"))
            begun.set()
            await asyncio.Event().wait()

    running = asyncio.ensure_future(program())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await ended(client, "CompleteAbort")
    assert await values(client) == []


async def test_a_record_that_fails_aborts_its_transaction(client: Client, producer: TransactionalProducer) -> None:
    await client.create_topic("small", configs={"max.message.bytes": "1000"})
    with pytest.raises(RecordTooLarge):
        async with producer.transaction() as transaction:
            await transaction.send("t", b"lost")
            await transaction.send("small", b"x" * 5000)
    await ended(client, "CompleteAbort")
    with pytest.raises(RecordTooLarge):  # as soon as the error is known
        async with producer.transaction() as transaction:
            future = await transaction.send("small", b"x" * 5000)
            await asyncio.wait([future])
            await transaction.send("t", b"lost")
    async with producer.transaction() as transaction:
        await transaction.send("t", b"kept")
        with pytest.raises(UnknownTopicOrPartition):  # the record reached no batch
            await transaction.send("nowhere", b"")
    await committed(client, b"kept")


# --- offsets ----------------------------------------------------------------------------------------------------------
async def test_a_copy_loop_copies_each_record_once(client: Client, producer: TransactionalProducer) -> None:
    await client.create_topic("source")
    async with client.producer() as plain:
        for number in range(30):
            await plain.send("source", b"%02d" % number)
    for stopped in (True, False):
        copied = 0
        try:
            async with client.consumer("copier", ["source"], BY_HAND) as consumer:
                while copied < 30:
                    messages = await consumer.take(7)
                    async with producer.transaction() as transaction:
                        for message in messages:
                            await transaction.send("t", message.value, key=message.value)
                        await transaction.send_offsets(consumer)
                        if stopped and messages[0].offset >= 14:
                            raise Stop
                    copied = messages[-1].offset + 1
        except Stop:
            assert await client.group_offsets("copier") == {S0: copied}
    assert await client.group_offsets("copier") == {S0: 30}
    await committed(client, *(b"%02d" % number for number in range(30)))


async def test_a_groups_offsets_are_committed_by_name(client: Client, producer: TransactionalProducer) -> None:
    await client.create_topic("source")
    async with producer.transaction() as transaction:
        await transaction.send_offsets("g", {S0: 4})
        assert await client.group_offsets("g") == {}
    async with asyncio.timeout(60):
        while await client.group_offsets("g") != {S0: 4}:
            await asyncio.sleep(0.005)
    with pytest.raises(Stop):
        async with producer.transaction() as transaction:
            await transaction.send_offsets("g", {S0: 9})
            raise Stop
    await ended(client, "CompleteAbort")
    assert await client.group_offsets("g") == {S0: 4}


async def test_offsets_that_are_refused_abort_the_transaction(client: Client, producer: TransactionalProducer) -> None:
    await client.create_topic("source")
    async with client.consumer("g", ["source"], BY_HAND) as consumer:
        with pytest.raises(IllegalGeneration, match="no longer a member"):
            async with producer.transaction() as transaction:
                await transaction.send_offsets(consumer, {S0: 1})
    with pytest.raises(UnknownTopicOrPartition):
        async with producer.transaction() as transaction:
            await transaction.send("t", b"lost")
            await transaction.send_offsets("g", {TopicPartition("nowhere", 0): 1})
    async with producer.transaction() as transaction:
        await transaction.send("t", b"kept")
        await transaction.send_offsets("g", {S0: 2})
    await committed(client, b"kept")


# --- fenced and disturbed ---------------------------------------------------------------------------------------------
async def test_a_producer_that_was_fenced_learns_it_and_commits_nothing(
    client: Client, producer: TransactionalProducer
) -> None:
    with pytest.raises(ProducerFenced, match="another producer of the transactional id x has begun"):
        async with producer.transaction() as transaction:
            await (await transaction.send("t", b"lost"))
            async with client.transactional_producer("x") as newer, newer.transaction() as other:
                await other.send("t", b"kept")
    with pytest.raises(ProducerFenced, match="create a new producer"):
        async with producer.transaction():
            pass
    await committed(client, b"kept")
    # The advice works, and fences in turn.
    async with client.transactional_producer("x") as again, again.transaction() as transaction:
        await transaction.send("t", b"more")
    await committed(client, b"kept", b"more")


async def test_a_fenced_producer_learns_it_from_its_records(client: Client, producer: TransactionalProducer) -> None:
    async with client.transactional_producer("x"):
        with pytest.raises(ProducerFenced):
            async with producer.transaction() as transaction:
                with pytest.raises((InvalidProducerEpoch, ProducerFenced)):
                    await (await transaction.send("t", b"lost"))
    assert await values(client, options=DIRTY) == []


async def test_a_transaction_that_is_open_for_too_long_is_aborted(client: Client) -> None:
    await client.create_topic("t")
    async with client.transactional_producer("x", timeout_s=1.0) as producer:
        with pytest.raises(ProducerFenced, match="open for more than 1 s"):
            async with producer.transaction() as transaction:
                await (await transaction.send("t", b"lost"))
                await ended(client, "CompleteAbort")
    assert await values(client) == []


async def test_a_lost_connection_costs_and_doubles_nothing(
    node: Served, client: Client, producer: TransactionalProducer
) -> None:
    async with producer.transaction() as transaction:
        for number in range(20):
            await transaction.send("t", b"%02d" % number)
            if number == 10:
                await node.close_connection()
                back = asyncio.ensure_future(node.come_back())
        await back
    await committed(client, *(b"%02d" % number for number in range(20)))


async def test_a_transaction_that_is_being_committed_takes_no_more_records(
    node: Served, client: Client, producer: TransactionalProducer
) -> None:
    """Such records would belong to the next transaction."""
    opened = producer.begin()
    await opened.send("t", b"kept")
    await node.close_connection()
    ending = asyncio.ensure_future(producer.commit())
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match="begin another"):
        await opened.send("t", b"late")
    await node.come_back()
    await ending
    await committed(client, b"kept")


# --- wrong use --------------------------------------------------------------------------------------------------------
async def test_wrong_use_is_explained(client: Client, producer: TransactionalProducer) -> None:
    async with producer.transaction() as over:
        with pytest.raises(InvalidRequest, match="still open"):
            producer.begin()
        with pytest.raises(InvalidRequest, match="needs its offsets"):
            await over.send_offsets("g")
        with pytest.raises(InvalidRequest, match="for each partition, not None"):
            await over.send_offsets("g", {S0: None})  # type: ignore[dict-item]
        async with client.consumer("g", ["t"]) as consumer:
            with pytest.raises(InvalidRequest, match="set auto_commit_s=None"):
                await over.send_offsets(consumer)
    for late in (over.send("t", b""), over.send_offsets("g", {S0: 1})):
        with pytest.raises(InvalidRequest, match="begin another"):
            await late
    for name, options, timeout_s, error in (
        ("", ProducerOptions(), 60.0, InvalidRequest),
        (7, ProducerOptions(), 60.0, InvalidRequest),
        ("y", ProducerOptions(idempotent=False), 60.0, InvalidConfig),
        ("y", ProducerOptions(), 0.0, InvalidConfig),
        ("y", ProducerOptions(), 1e9, InvalidConfig),
        ("y", ProducerOptions(), 1e6, InvalidTransactionTimeout),
    ):
        with pytest.raises(LogError) as refused:
            async with client.transactional_producer(name, options, timeout_s=timeout_s):  # type: ignore[arg-type]
                pass
        assert isinstance(refused.value, error), (name, options, timeout_s)
