"""`transaction.version` decides how Java's producer ends transactions, and Kafka's own tool lowers and raises it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support import kafka_jars
from tests.support.clients import create
from tests.support.node import Node

TOOLS = "org.apache.kafka.tools."
RECORDS = 500


def transactions(node: Node) -> int:
    """Runs Java's producer with transactions; returns how often it added partitions to one itself."""
    before = added(node)
    load = ("--topic", "t", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    transactional = ("--transactional-id", "x", "--transaction-duration-ms", "20")
    printed = kafka_jars.run_tool(
        f"{TOOLS}ProducerPerformance", *load, *transactional, "--command-property", f"bootstrap.servers={node.kafka}"
    )
    assert f"{RECORDS} records sent" in printed
    return added(node) - before


def added(node: Node) -> int:
    _, body = node.get("/metrics")
    name = re.escape('kafka_network_requestmetrics_requests_total{request="AddPartitionsToTxn"}')
    found = re.search(f"^{name} (\\d+)$", body, re.MULTILINE)
    return 0 if found is None else int(found[1])


def features(node: Node, *words: str) -> str:
    return kafka_jars.run_tool(f"{TOOLS}FeatureCommand", "--bootstrap-server", node.kafka, *words)


def test_javas_producer_follows_the_level(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert transactions(node) == 0, "at level 2 the broker adds partitions"
        assert "was downgraded to 0" in features(node, "downgrade", "--feature", "transaction.version=0")
        assert transactions(node) > 0, "below it the client does"
        node.restart()
        described = next(line for line in features(node, "describe").splitlines() if "transaction.version" in line)
        assert "SupportedMaxVersion: 2\tFinalizedVersionLevel: 0" in described
        assert "was upgraded to 2" in features(node, "upgrade", "--feature", "transaction.version=2")
        assert transactions(node) == 0
        read = kafka_jars.run_tool(
            f"{TOOLS}consumer.ConsoleConsumer",
            *("--bootstrap-server", node.kafka, "--topic", "t", "--from-beginning", "--timeout-ms", "20000"),
            *("--isolation-level", "read_committed", "--max-messages", str(3 * RECORDS)),
        )
        assert len(read.splitlines()) >= 3 * RECORDS
