"""The spine: real records from a Kafka client through hot disk and the bucket, back to a client.

Spark's part of the test is `tests/spark/test_spine.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.clients import TIERED, consume, create, local_bytes, produce, seal, until
from tests.support.node import Node

RECORDS = 10_000
PARTITIONS = 3


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def end(node: Node, topic: str) -> int:
    """The high watermark of a topic of one partition."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused"})
    _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    return high


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
        produce(node, "again", 500, first=500, **{"enable.idempotence": True})
        seal(node, "again")
        node.kill()
        node.start()
        found = consume(node, "again", 1, 1000)
        assert [found[b"key-%d" % i][1] for i in range(1000)] == list(range(1000))
        assert end(node, "again") == 1000
