"""Java's own producer, idempotent by default, and Kafka's own tools against a node."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.clients import consume, create
from tests.support.kafka_jars import run_tool
from tests.support.node import Node

RECORDS = 20_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("java")) as started:
        yield started


def test_its_idempotent_producer_is_acknowledged_by_all(node: Node) -> None:
    create(node, "perf", 2, {"remote.storage.enable": "false"})
    printed = run_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "perf", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={node.kafka}", "acks=all", "compression.type=lz4"),
    )
    assert re.search(rf"^{RECORDS} records sent", printed, re.MULTILINE)
    offsets = run_tool(
        "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", node.kafka, "--topic", "perf", "--time", "-1"
    )
    ends = [int(line.rpartition(":")[2]) for line in offsets.split()]
    assert len(ends) == 2
    assert sum(ends) == RECORDS


def test_its_verifiable_producer_is_told_of_every_record(node: Node) -> None:
    """VerifiableProducer writes 0, 1, 2 ... and says for each that it was acknowledged."""
    create(node, "verified", 1, {"remote.storage.enable": "false"})
    printed = run_tool(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", node.kafka, "--topic", "verified", "--max-messages", "500", "--acks", "-1"),
        *("--repeating-keys", "1000"),
    )
    assert printed.count("producer_send_success") == 500
    found = consume(node, "verified", 1, 500)
    assert {value for _, _, value in found.values()} == {b"%d" % i for i in range(500)}
