"""Each public client reads what each other wrote, once more after the local copies have gone.

All compress with gzip, the one codec that kafka-python decodes without further packages.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Producer

from tests.support.clients import TIERED, consume, create, local_bytes, seal, until
from tests.support.node import Node

Pairs = Sequence[tuple[bytes, bytes]]


def pairs(writer: str) -> Pairs:
    return [(b"%s-%d" % (writer.encode(), i), b"value %d " % i * 20) for i in range(200)]


def write_confluent(node: Node, topic: str, records: Pairs) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "compression.type": "gzip", "enable.idempotence": True})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def write_kafka_python(node: Node, topic: str, records: Pairs) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=node.kafka, acks="all", compression_type="gzip")
    sent = [producer.send(topic, key=key, value=value) for key, value in records]
    for future in sent:
        future.get(30)
    producer.close()


def write_aiokafka(node: Node, topic: str, records: Pairs) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=node.kafka, enable_idempotence=True, compression_type="gzip"
        ) as producer:
            for sent in [await producer.send(topic, value, key) for key, value in records]:
                await sent

    asyncio.run(run())


def write_kcat(node: Node, topic: str, records: Pairs) -> None:
    lines = b"".join(key + b"\t" + value + b"\n" for key, value in records)
    command = ["kcat", "-b", node.kafka, "-P", "-t", topic, "-K", "\t", "-z", "gzip"]
    subprocess.run(command, input=lines, check=True, timeout=60)


def read_confluent(node: Node, topic: str, count: int) -> Pairs:
    return [(key, value) for key, (_, _, value) in consume(node, topic, 1, count).items()]


def read_kafka_python(node: Node, topic: str, count: int) -> Pairs:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=node.kafka, consumer_timeout_ms=30_000, enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found = [(message.key, message.value) for message, _ in zip(consumer, range(count), strict=False)]
    consumer.close()
    return found


def read_aiokafka(node: Node, topic: str, count: int) -> Pairs:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> Pairs:
        found: list[tuple[bytes, bytes]] = []
        async with AIOKafkaConsumer(bootstrap_servers=node.kafka) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            async with asyncio.timeout(60):
                while len(found) < count:
                    message = await consumer.getone()
                    found.append((message.key, message.value))
        return found

    return asyncio.run(run())


def read_kcat(node: Node, topic: str, count: int) -> Pairs:
    command = ["kcat", "-b", node.kafka, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-q"]
    printed = subprocess.run([*command, "-f", "%k\t%s\n"], check=True, capture_output=True, timeout=60).stdout
    found = []
    for line in printed.splitlines():
        key, _, value = line.partition(b"\t")
        found.append((key, value))
    return found


WRITERS: dict[str, Callable[[Node, str, Pairs], None]] = {
    "confluent": write_confluent,
    "kafka-python": write_kafka_python,
    "aiokafka": write_aiokafka,
    "kcat": write_kcat,
}
READERS: dict[str, Callable[[Node, str, int], Pairs]] = {
    "confluent": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
    "kcat": read_kcat,
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("clients")) as started:
        yield started


@pytest.fixture(scope="module")
def written(node: Node) -> Pairs:
    """What all writers wrote to one topic, in no order."""
    create(node, "mixed", 1, {**TIERED, "local.retention.ms": "-1"})
    for name, write in WRITERS.items():
        write(node, "mixed", pairs(name))
    return sorted(pair for name in WRITERS for pair in pairs(name))


@pytest.mark.parametrize("reader", READERS)
def test_reads_what_all_wrote(node: Node, written: Pairs, reader: str) -> None:
    assert sorted(READERS[reader](node, "mixed", len(written))) == list(written)


@pytest.mark.parametrize("reader", READERS)
def test_reads_it_from_the_bucket(node: Node, written: Pairs, reader: str) -> None:
    evict(node)
    assert sorted(READERS[reader](node, "mixed", len(written))) == list(written)


def evict(node: Node) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    change = ConfigEntry("local.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "mixed", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)
    seal(node, "mixed")
    until(lambda: local_bytes(node, "mixed", 1) == 0, "local segments are evicted")
