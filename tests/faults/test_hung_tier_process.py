"""A tier process that hangs: Kafka's clients get an error within their time limits, and the next tier process answers them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.faults.clients import until
from tests.support.clients import TIERED, create, produce
from tests.support.node import Node

#: Kafka's `request.timeout.ms` of an AdminClient and of a consumer.
REQUEST_TIMEOUT_S = 30.0


def tier_processes(node: Node) -> list[int]:
    assert node.process is not None
    threads = Path(f"/proc/{node.process.pid}/task").glob("*/children")
    found = [int(each) for children in threads for each in children.read_text().split()]
    return [each for each in found if b"cold.process.main" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_lookup_by_time_fails_at_its_deadline_and_succeeds_when_retried(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "orders", 1, TIERED)
        produce(node, "orders", 2000)
        partition = node.data_dir / "orders-0"
        until(lambda: not (partition / f"{0:020}.log").exists(), "the first segment is in the bucket only")
        consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "none", "enable.auto.commit": False})
        try:
            until(lambda: len(tier_processes(node)) == 1, "the tier process runs")
            (hung,) = tier_processes(node)
            os.kill(hung, signal.SIGSTOP)
            wanted = [TopicPartition("orders", 0, 1)]
            with pytest.raises(KafkaException) as told:  # the node answers within the client's time limit
                consumer.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S)
            assert told.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
            (found,) = consumer.offsets_for_times(wanted, timeout=REQUEST_TIMEOUT_S)
            assert (found.error, found.offset) == (None, 0)
            assert hung not in tier_processes(node)
        finally:
            consumer.close()
