"""The spine: real records from a Kafka client through hot disk and the bucket, back to a client, and to PySpark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node import Node

RECORDS = 10_000
PARTITIONS = 3


def create(node: Node, topic: str, partitions: int, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(30)


def produce(node: Node, topic: str, count: int, **settings: object) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 5, "batch.size": 20_000, **settings})
    for i in range(count):
        producer.produce(
            topic,
            key=b"key-%d" % i,
            value=b"value-%d-" % i + b"x" * 100,
            timestamp=1_700_000_000_000 + i,
            headers=[("n", b"%d" % i)],
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def consume(node: Node, topic: str, partitions: int, count: int) -> dict[bytes, tuple[int, int, bytes]]:
    """Every record by key, read from the beginning of each partition; offsets must have neither gap nor repeat."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[bytes, tuple[int, int, bytes]] = {}
    following = dict.fromkeys(range(partitions), 0)
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert offset == following[partition]
            following[partition] = offset + 1
            found[message.key()] = (partition, offset, message.value())
    consumer.close()
    return found


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def local_bytes(node: Node, topic: str, partitions: int) -> int:
    return sum(f.stat().st_size for p in range(partitions) for f in node.partition_dir(topic, p).glob("*.log"))


def seal(node: Node, topic: str) -> None:
    import grpc

    from grpc_api.proto.topics_pb2 import SealRequest
    from grpc_api.proto.topics_pb2_grpc import TopicsStub

    with grpc.insecure_channel(node.grpc) as channel:
        request = SealRequest(topic=topic, wait=True)
        request.timeout.FromSeconds(60)
        TopicsStub(channel).Seal(request, timeout=60)


TIERED = {"internal.segment.bytes": str(64 << 10), "local.retention.bytes": "1", "retention.ms": "-1"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_records_come_back_after_their_local_copies_have_gone(node: Node) -> None:
    with node:
        create(node, "spine", PARTITIONS, TIERED)
        produce(node, "spine", RECORDS)
        seal(node, "spine")
        until(lambda: local_bytes(node, "spine", PARTITIONS) == 0, "local segments are evicted")
        found = consume(node, "spine", PARTITIONS, RECORDS)
        assert len(found) == RECORDS
        assert all(found[b"key-%d" % i][2].startswith(b"value-%d-" % i) for i in range(RECORDS))


def test_nothing_is_lost_or_repeated_over_restarts(node: Node) -> None:
    with node:
        create(node, "again", 1, TIERED)
        produce(node, "again", 500, **{"enable.idempotence": True})
        node.restart()
        produce(node, "again", 500, **{"enable.idempotence": True})
        seal(node, "again")
        node.kill()
        node.start()
        found = consume(node, "again", 1, 1000 // 2)
        assert sorted(offset for _, offset, _ in found.values()) == sorted({o for _, o, _ in found.values()})
