"""Operations of a real Kafka client on a real node: create, produce, consume, seal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node import Node

#: Segments far below Kafka's smallest `segment.bytes`, and no local copy of offloaded records.
TIERED = {"internal.segment.bytes": str(64 << 10), "local.retention.ms": "1", "retention.ms": "-1"}


def create(node: Node, topic: str, partitions: int, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(30)


def produce(node: Node, topic: str, count: int, *, first: int = 0, **settings: object) -> None:
    """Produces `count` records, numbered from `first` on."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 5, "batch.size": 20_000, **settings})
    for i in range(first, first + count):
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
    """All records by key, read from the start of each partition; asserts that offsets have neither gap nor repeat."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
    found: dict[bytes, tuple[int, int, bytes]] = {}
    following = dict.fromkeys(range(partitions), 0)
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            assert offset == following[partition]
            following[partition] = offset + 1
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert isinstance(value, bytes)
            found[key] = (partition, offset, value)
    consumer.close()
    return found


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def local_bytes(node: Node, topic: str, partitions: int) -> int:
    total = 0
    for partition in range(partitions):
        for segment in node.partition_dir(topic, partition).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # evicted since it was listed
                total += segment.stat().st_size
    return total


def seal(node: Node, topic: str) -> None:
    import grpc

    from grpc_api.proto.topics_pb2 import SealRequest
    from grpc_api.proto.topics_pb2_grpc import TopicsStub

    with grpc.insecure_channel(node.grpc) as channel:
        request = SealRequest(topic=topic, wait=True)
        request.timeout.FromSeconds(60)
        TopicsStub(channel).Seal(request, timeout=60)
