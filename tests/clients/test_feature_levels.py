"""`transaction.version` decides how Java's producer ends transactions, and Kafka's own tool lowers and raises it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.clients import create
from tests.support.node import Node
from tests.support.talker import Talker

TOOLS = "org.apache.kafka.tools."
RECORDS = 500


def run_tool(java: Talker, tool: str, *words: str) -> str:
    answer = java.ask(command="tool", tool=f"{TOOLS}{tool}", arguments=list(words))
    assert answer["status"] == 0, answer["printed"]
    return str(answer["printed"])


def transactions(node: Node, java: Talker) -> int:
    """Runs Java's producer with transactions; returns the number of its AddPartitionsToTxn requests."""
    before = added(node)
    load = ("--topic", "t", "--num-records", str(RECORDS), "--record-size", "100", "--throughput", "-1")
    transactional = ("--transactional-id", "x", "--transaction-duration-ms", "20")
    words = (*load, *transactional, "--command-property", f"bootstrap.servers={node.kafka}")
    printed = run_tool(java, "ProducerPerformance", *words)
    assert f"{RECORDS} records sent" in printed
    return added(node) - before


def added(node: Node) -> int:
    _, body = node.get("/metrics")
    name = re.escape('kafka_network_requestmetrics_requests_total{request="AddPartitionsToTxn"}')
    found = re.search(f"^{name} (\\d+)$", body, re.MULTILINE)
    return 0 if found is None else int(found[1])


def features(node: Node, java: Talker, *words: str) -> str:
    return run_tool(java, "FeatureCommand", "--bootstrap-server", node.kafka, *words)


def test_javas_producer_follows_the_level(tmp_path: Path, java: Talker) -> None:
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert transactions(node, java) == 0, "at level 2 the broker adds partitions"
        assert "was downgraded to 0" in features(node, java, "downgrade", "--feature", "transaction.version=0")
        assert transactions(node, java) > 0, "below it the client does"
        node.restart()
        described = next(
            line for line in features(node, java, "describe").splitlines() if "transaction.version" in line
        )
        assert "SupportedMaxVersion: 2\tFinalizedVersionLevel: 0" in described
        assert "was upgraded to 2" in features(node, java, "upgrade", "--feature", "transaction.version=2")
        assert transactions(node, java) == 0
        read = run_tool(
            java,
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", node.kafka, "--topic", "t", "--from-beginning", "--timeout-ms", "20000"),
            *("--isolation-level", "read_committed", "--max-messages", str(3 * RECORDS)),
        )
        assert len(read.splitlines()) >= 3 * RECORDS
