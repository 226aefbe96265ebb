"""Exactly once with real clients: transactions of librdkafka, aiokafka and Java's producer, and their readers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from grpc_api.contract.coordinator_errors import ProducerFenced
from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.cold import ColdBucket
from grpc_api.sdk.values import ReaderOptions
from tests.clients.test_groups import consumer, read, until
from tests.support.clients import create
from tests.support.node import Node
from tests.support.talker import Talker

PARTITIONS = 2
SECONDS = 60.0
EMPTY: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    name = f"{request.node.name.replace('[', '-').replace(']', '')}-topic"
    create(node, name, PARTITIONS, {})
    return name


def transactional(node: Node, name: str, **more: Any) -> Producer:
    made = Producer({"bootstrap.servers": node.kafka, "transactional.id": name, **more})
    made.init_transactions(SECONDS)
    return made


def transact(producer: Producer, topic: str, *values: str, commit: bool = True) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.flush(SECONDS)  # else librdkafka drops what it has not sent
        producer.abort_transaction(SECONDS)


@contextmanager
def reader(node: Node, topic: str, isolation: str) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": isolation})
    made.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        yield made
    finally:
        made.close()


def found(node: Node, topic: str, count: int, isolation: str = "read_committed") -> list[str]:
    """The values found, sorted. The last committed record must be the last of its partition, or missing ones would go
    unnoticed."""
    with reader(node, topic, isolation) as made:
        values = read(made, count)
        values += [message.value() for message in made.consume(100, 0.5)]
    return sorted(value.decode() for value in values if value is not None)


def test_readers_of_committed_records_see_no_aborted_ones(node: Node, topic: str) -> None:
    producer = transactional(node, topic)
    transact(producer, topic, "a", "b", "c")
    transact(producer, topic, "lost", "gone", commit=False)
    transact(producer, topic, "d", "e")
    assert found(node, topic, 5) == ["a", "b", "c", "d", "e"]
    assert found(node, topic, 7, "read_uncommitted") == ["a", "b", "c", "d", "e", "gone", "lost"]


def test_an_open_transaction_holds_readers_of_committed_records_back(node: Node, topic: str) -> None:
    producer, other = transactional(node, topic), transactional(node, f"{topic}-2")
    producer.begin_transaction()
    producer.produce(topic, "first", partition=0)
    producer.flush(SECONDS)
    transact(other, topic, "second")
    assert last_stable_offset(node, topic, 0) == 0
    with reader(node, topic, "read_committed") as made:
        producer.commit_transaction(SECONDS)
        assert read(made, 2) == [b"first", b"second"]
    assert last_stable_offset(node, topic, 0) == 4


def last_stable_offset(node: Node, topic: str, partition: int) -> int:
    place = TopicPartition(topic, partition)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(asked[place].result(SECONDS).offset)


def test_a_member_of_an_earlier_generation_commits_no_offsets_in_a_transaction(node: Node, topic: str) -> None:
    """Another member has taken over its partition. The transaction can be aborted, and the next transaction commits."""
    source, group = f"{topic}-source", f"{topic}-group"
    create(node, source, PARTITIONS, {})
    producer = transactional(node, topic)
    with consumer(node, source, group) as zombie:
        until(lambda: zombie.poll(0.1), lambda: len(zombie.assignment()) == PARTITIONS)
        before = zombie.consumer_group_metadata()
        with consumer(node, source, group) as other:
            both = (zombie, other)
            until(lambda: [each.poll(0.1) for each in both], lambda: all(len(each.assignment()) == 1 for each in both))
            (place,) = zombie.assignment()
            place.offset = 7
            producer.begin_transaction()
            producer.produce(topic, "lost", partition=0)
            with pytest.raises(KafkaException) as refused:
                producer.send_offsets_to_transaction([place], before, SECONDS)
            assert refused.value.args[0].txn_requires_abort()
            producer.abort_transaction(SECONDS)
            producer.begin_transaction()
            producer.produce(topic, "kept", partition=0)
            producer.send_offsets_to_transaction([place], zombie.consumer_group_metadata(), SECONDS)
            producer.commit_transaction(SECONDS)
            assert [each.offset for each in zombie.committed([place], SECONDS)] == [7]
    assert found(node, topic, 1) == ["kept"]


def test_a_copy_loop_copies_each_record_once(node: Node, topic: str) -> None:
    source = f"{topic}-source"
    create(node, source, PARTITIONS, {})
    transact(transactional(node, source), source, *(f"{number:03d}" for number in range(40)))
    producer = transactional(node, topic)
    copied = 0
    with consumer(node, source, f"{topic}-group", **{"isolation.level": "read_committed"}) as one:
        while copied < 40:
            messages = one.consume(7, 1.0)
            if not messages:
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(topic, message.value(), partition=message.partition() or 0)
            positions = one.position(one.assignment())
            producer.send_offsets_to_transaction(positions, one.consumer_group_metadata(), SECONDS)
            if copied == 0:
                producer.flush(SECONDS)
                producer.abort_transaction(SECONDS)
                # After an abort, an application seeks to the committed offsets.
                for place in one.committed(one.assignment(), SECONDS):
                    one.seek(TopicPartition(source, place.partition, max(place.offset, 0)))
                copied = -1
                continue
            producer.commit_transaction(SECONDS)
            copied = max(copied, 0) + len(messages)
        committed = one.committed(one.assignment(), SECONDS)
        assert sorted(each.offset for each in committed) == sorted(
            each.offset for each in one.position(one.assignment())
        )
    assert found(node, topic, 40) == [f"{number:03d}" for number in range(40)]


def test_the_older_of_two_instances_is_fenced(node: Node, topic: str) -> None:
    old = transactional(node, topic)
    old.begin_transaction()
    old.produce(topic, "of the old one", partition=0)
    old.flush(SECONDS)
    new = transactional(node, topic)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(SECONDS)
    assert refused.value.args[0].fatal()
    transact(new, topic, "of the new one")
    assert found(node, topic, 1) == ["of the new one"]


def test_transactions_outlive_a_killed_node(tmp_path: Path) -> None:
    with Node(tmp_path, settings=EMPTY) as node:
        create(node, "t", PARTITIONS, {})
        producer = transactional(node, "x")
        transact(producer, "t", "before", "before too")
        producer.begin_transaction()
        producer.produce("t", "open", partition=0)
        producer.flush(SECONDS)
        node.kill()
        node.start()
        producer.produce("t", "still open", partition=1)
        producer.commit_transaction(SECONDS)
        transact(producer, "t", "after")
        assert found(node, "t", 5) == ["after", "before", "before too", "open", "still open"]


def test_a_transaction_ends_by_itself_after_its_timeout(node: Node, topic: str) -> None:
    producer = transactional(node, topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, "too late", partition=0)
    producer.flush(SECONDS)
    transact(transactional(node, f"{topic}-2"), topic, "waited")
    assert found(node, topic, 1) == ["waited"]


async def test_aiokafka_commits_and_aborts(node: Node, topic: str) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=node.kafka, transactional_id=topic)
    await producer.start()
    try:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept", partition=0)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"lost", partition=1)
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept too", partition=1)
    finally:
        await producer.stop()
    assert found(node, topic, 2) == ["kept", "kept too"]


def test_javas_producer_commits_and_aborts(node: Node, java: Talker, topic: str) -> None:
    def records(*values: str) -> list[dict[str, Any]]:
        rows = enumerate(values)
        return [{"partition": at % 2, "value": base64.b64encode(each.encode()).decode()} for at, each in rows]

    java.ask(
        command="transact",
        bootstrap=node.kafka,
        topic=topic,
        configs={"transactional.id": topic},
        transactions=[records("a", "b"), records("lost"), records("c"), records("gone", "away"), records("d", "e")],
        aborts=[1, 3],
    )
    assert found(node, topic, 5) == ["a", "b", "c", "d", "e"]


def test_the_sdk_and_the_bucket_show_committed_records_alone(tmp_path: Path) -> None:
    with Node(tmp_path, settings=EMPTY) as node, BlockingClient.connect(node.grpc) as client:
        create(node, "t", PARTITIONS, {})
        producer = transactional(node, "x")
        transact(producer, "t", "a", "b", "c")
        transact(producer, "t", "lost", "gone", commit=False)
        transact(producer, "t", "d", "e")

        def read_from(start: str, *, committed_only: bool) -> list[bytes]:
            with client.reader(
                "t", start=start, options=ReaderOptions(until_end=True, committed_only=committed_only)
            ) as made:
                return sorted(each.value or b"" for each in made)

        everything = [b"a", b"b", b"c", b"d", b"e", b"gone", b"lost"]
        for tier in ("before", "after it is offloaded"):
            assert read_from("earliest", committed_only=True) == everything[:5], tier
            assert read_from("earliest", committed_only=False) == everything, tier
            client.seal("t")
        with ColdBucket.open(node.store) as bucket:
            assert sorted(each.value or b"" for each in bucket.read("t")) == everything[:5]


def test_producers_of_the_sdk_and_of_kafka_fence_each_other(node: Node, topic: str) -> None:
    """Readers of both see the committed records of both."""
    first = transactional(node, topic)
    first.begin_transaction()
    first.produce(topic, "lost", partition=0)
    assert first.flush(SECONDS) == 0
    with BlockingClient.connect(node.grpc) as client, client.transactional_producer(topic) as producer:
        with producer.transaction() as transaction:
            for value in (b"a", b"b", b"c"):
                transaction.send(topic, value, partition=1)
        with pytest.raises(KafkaException) as fenced:
            first.commit_transaction(SECONDS)
        assert fenced.value.args[0].fatal()
        second = transactional(node, topic)
        with pytest.raises(ProducerFenced, match="another producer"), producer.transaction() as transaction:
            transaction.send(topic, b"late", partition=1)
        transact(second, topic, "d", "e")
        assert found(node, topic, 5) == ["a", "b", "c", "d", "e"]
        with client.reader(topic) as committed:
            assert sorted(next(committed).value or b"" for _ in range(5)) == [b"a", b"b", b"c", b"d", b"e"]
