"""Clients during changes of the node: it restarts, or a topic is deleted and created again.

Also large cases: many connections, and many partitions in one request.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients import tools
from tests.support.clients import create, until
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
CONNECTIONS = 200
PARTITIONS = 1000


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("changing"), store="none") as node:
        yield node


class Librdkafka:
    """A long-lived consumer of one partition, like the others below."""

    def __init__(self, address: str, topic: str, offset: int = 0, epoch: int | None = None) -> None:
        settings = {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({"bootstrap.servers": address, **settings})
        place = (
            TopicPartition(topic, 0, offset) if epoch is None else TopicPartition(topic, 0, offset, leader_epoch=epoch)
        )
        self._consumer.assign([place])

    def values(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(600):
            polled = self._consumer.consume(count - len(found), timeout=0.1)
            # Temporary errors arrive as messages, too.
            found += [bytes(each.value() or b"") for each in polled if each.error() is None]
            if len(found) == count:
                return found
        raise AssertionError(f"{len(found)} of {count} values")

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    def __init__(self, address: str, topic: str) -> None:
        from kafka import KafkaConsumer
        from kafka import TopicPartition as Partition

        self._consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, auto_offset_reset="earliest")
        self._consumer.assign([Partition(topic, 0)])
        self._consumer.seek(Partition(topic, 0), 0)

    def values(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(600):
            for messages in self._consumer.poll(100, max_records=count - len(found)).values():
                found += [each.value for each in messages]
            if len(found) == count:
                return found
        raise AssertionError(f"{len(found)} of {count} values")

    def close(self) -> None:
        self._consumer.close()


class Java:
    def __init__(self, talker: Talker, address: str, topic: str, offset: int = 0, epoch: int | None = None) -> None:
        self._talker = talker
        configs = {"auto.offset.reset": "earliest", "max.poll.records": "1", "metadata.max.age.ms": "1000"}
        place = [topic, 0, offset, epoch]
        talker.ask(command="open", bootstrap=address, name="staying", partitions=[place], configs=configs)

    def values(self, count: int) -> list[bytes]:
        return [
            base64.b64decode(each["value"]) for each in self._talker.ask(command="poll", name="staying", count=count)
        ]

    def close(self) -> None:
        self._talker.ask(command="close", name="staying")


def write(address: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


# --- epochs -----------------------------------------------------------------------------------------------------------
def test_consumers_continue_after_a_restart_raised_the_epoch(changing: Node, java: Talker) -> None:
    """Consumers fetch with the old epoch, are refused, learn the new one and continue where they were.

    A consumer that starts at an offset of the older epoch asks OffsetForLeaderEpoch whether its records still exist.
    """
    create(changing, "aged", 1, {})
    write(changing.kafka, "aged", b"0", b"1", b"2")
    consumers: list[Librdkafka | KafkaPython | Java] = [
        Librdkafka(changing.kafka, "aged"),
        KafkaPython(changing.kafka, "aged"),
        Java(java, changing.kafka, "aged"),
    ]
    assert [each.values(3) for each in consumers] == [[b"0", b"1", b"2"]] * 3
    changing.restart()
    write(changing.kafka, "aged", b"3", b"4")
    assert [each.values(2) for each in consumers] == [[b"3", b"4"]] * 3
    for consumer in consumers:
        consumer.close()
    late: Librdkafka | Java
    for late in (Librdkafka(changing.kafka, "aged", 2, 0), Java(java, changing.kafka, "aged", 2, 0)):
        assert late.values(3) == [b"2", b"3", b"4"]
        late.close()


# --- recreated topics -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("client", ["confluent-kafka", "Java"])
def test_readers_of_a_deleted_topic_read_its_successor(changing: Node, java: Talker, client: str) -> None:
    """A consumer's offset is past the new topic's end, so it resets to the beginning, as configured.

    kafka-python reads no further record, neither here nor on Apache Kafka.
    """
    topic = f"again-{client}"
    create(changing, topic, 1, {})
    write(changing.kafka, topic, *[b"old"] * 5)
    consumer: Librdkafka | Java
    consumer = Java(java, changing.kafka, topic) if client == "Java" else Librdkafka(changing.kafka, topic)
    admin = AdminClient({"bootstrap.servers": changing.kafka})
    try:
        assert consumer.values(5) == [b"old"] * 5
        admin.delete_topics([topic])[topic].result(30)
        create(changing, topic, 1, {})
        write(changing.kafka, topic, b"new 0", b"new 1")
        assert consumer.values(2) == [b"new 0", b"new 1"]
    finally:
        consumer.close()


def test_a_producer_of_the_old_topic_writes_to_the_new_one(changing: Node) -> None:
    create(changing, "rewritten", 1, {})
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": changing.kafka, "topic.metadata.refresh.interval.ms": 1000})
    producer.produce("rewritten", b"old")
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": changing.kafka})
    admin.delete_topics(["rewritten"])["rewritten"].result(30)
    create(changing, "rewritten", 1, {})
    producer.produce("rewritten", b"new", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failed
    consumer = Librdkafka(changing.kafka, "rewritten")
    assert consumer.values(1) == [b"new"]
    consumer.close()


# --- large numbers ----------------------------------------------------------------------------------------------------
async def test_200_connections_write_and_read_at_once(changing: Node) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka import TopicPartition as Partition

    create(changing, "crowded", 4, {})
    async with AsyncExitStack() as stack:
        producers = [AIOKafkaProducer(bootstrap_servers=changing.kafka) for _ in range(CONNECTIONS // 2)]
        consumers = [AIOKafkaConsumer(bootstrap_servers=changing.kafka) for _ in range(CONNECTIONS // 2)]
        await asyncio.gather(*(stack.enter_async_context(each) for each in (*producers, *consumers)))
        for consumer in consumers:
            consumer.assign([Partition("crowded", partition) for partition in range(4)])
        await asyncio.gather(*(each.seek_to_beginning() for each in consumers))
        sent = (each.send_and_wait("crowded", b"%d" % n, partition=n % 4) for n, each in enumerate(producers))
        await asyncio.gather(*sent)
        assert connections(changing) >= CONNECTIONS
        read = await asyncio.wait_for(asyncio.gather(*(values(each, len(producers)) for each in consumers)), 60)
        assert all(found == {b"%d" % n for n in range(len(producers))} for found in read)
    until(lambda: connections(changing) == 0, "the node drops its connections")


async def values(consumer: Any, count: int) -> set[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        for messages in (await consumer.getmany(timeout_ms=1000)).values():
            found += [each.value for each in messages]
    return set(found)


def connections(node: Node) -> int:
    status, text = node.get("/metrics")
    assert status == 200
    found = re.search(r"^kafka_server_socket_server_metrics_connection_count (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_1000_partitions_are_served_in_one_request(changing: Node, java: Talker, javascript: Talker) -> None:
    """With Produce, Fetch (in a session), ListOffsets and Metadata."""
    create(changing, "broad", PARTITIONS, {})
    records = [{"partition": n, "key": None, "value": base64.b64encode(b"%d" % n).decode()} for n in range(PARTITIONS)]
    configs = {"linger.ms": "1000", "batch.size": "1024", "max.in.flight.requests.per.connection": "1"}
    sent = java.ask(command="produce", bootstrap=changing.kafka, topic="broad", configs=configs, records=records)
    assert {(each["partition"], each["offset"]) for each in sent} == {(n, 0) for n in range(PARTITIONS)}
    places = [["broad", n, 0, None] for n in range(PARTITIONS)]
    java.ask(command="open", bootstrap=changing.kafka, name="broad", partitions=places, configs={})
    found = java.ask(command="poll", name="broad", count=PARTITIONS)
    java.ask(command="close", name="broad")
    assert {(each["partition"], base64.b64decode(each["value"])) for each in found} == {
        (n, b"%d" % n) for n in range(PARTITIONS)
    }
    words = ["--bootstrap-server", changing.kafka, "--topic", "broad"]
    printed = java.ask(command="tool", tool=tools.CLASSES["kafka-get-offsets"], arguments=words)["printed"]
    assert sorted(printed.split()) == sorted(f"broad:{n}:1" for n in range(PARTITIONS))
    listed = javascript.ask(command="admin", bootstrap=changing.kafka, method="fetchTopicOffsets", arguments=["broad"])
    assert {(each["partition"], each["low"], each["high"]) for each in listed} == {
        (n, "0", "1") for n in range(PARTITIONS)
    }
