"""The log, metrics and `topic describe` show the bytes that an open transaction keeps out of the bucket, and name its
producer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.service.cli.support import tidelog
from tests.support.clients import create, until
from tests.support.node import Node

SEGMENT = 16 << 10
#: The walks over all partitions, which name the producer, are 100 ms apart.
SETTINGS = {"log.flush.offset.checkpoint.interval.ms": 100}


def events(node: Node, name: str) -> list[Any]:
    lines = [json.loads(line) for line in node.output_path.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == name and line.get("topic") == "t"]


def held_back(node: Node) -> list[tuple[int, float]]:
    """The producer ids that `/metrics` names for the partition, and the bytes that each holds back."""
    _, body = node.get("/metrics")
    sample = r'^tidelog_tier_offload_held_back_bytes\{topic="t",partition="0",producer_id="(\d+)"\} (\S+)$'
    return [(int(producer), float(held)) for producer, held in re.findall(sample, body, re.MULTILINE)]


def closed_segments(node: Node) -> int:
    return len(list(node.partition_dir("t", 0).glob("*.log"))) - 1


def described(node: Node) -> Any:
    (partition,) = tidelog("topic", "describe", "t", "--json", "--bootstrap-server", node.kafka).json["partitions"]
    return partition


def test_a_transaction_open_over_three_rolls_is_named_everywhere(tmp_path: Path) -> None:
    with Node(tmp_path, settings=SETTINGS, flags=("--log-format", "json")) as node:
        create(node, "t", 1, {"internal.segment.bytes": str(SEGMENT), "local.retention.ms": "-2"})
        plain = Producer({"bootstrap.servers": node.kafka, "batch.size": 2000, "linger.ms": 0})
        plain.produce("t", b"before", partition=0)
        assert plain.flush(30) == 0
        slow = Producer({"bootstrap.servers": node.kafka, "transactional.id": "slow"})
        slow.init_transactions(30)
        slow.begin_transaction()
        slow.produce("t", b"in the transaction", partition=0)
        assert slow.flush(30) == 0

        while closed_segments(node) < 3:
            plain.produce("t", b"x" * 1500, partition=0)
            assert plain.flush(30) == 0

        until(lambda: bool(events(node, "offload.held_back")), "the log names the producer")
        (said,) = events(node, "offload.held_back")
        ((producer_id, held_bytes),) = held_back(node)
        partition = described(node)
        assert said["producer_id"] == producer_id
        assert (said["offset"], said["partition"]) == (1, 0)
        assert held_bytes > 2 * SEGMENT
        assert partition["open_transaction"] == {"producer_id": producer_id, "offset": 1}
        assert partition["tiered_end"] is None
        text = tidelog("topic", "describe", "t", "--bootstrap-server", node.kafka).out.splitlines()
        assert text[-1] == (
            f"partition 0: producer {producer_id} (transactional id slow) has a transaction open since offset 1. Until it "
            f"ends, read_committed consumers stop there, {partition['end'] - 1} offsets before the end, and the segment "
            "with that offset and all later ones stay on the disk; `tidelog txn abort slow` aborts it now"
        )

        read = tidelog("consume", "t", "--exit-at-end", "--bootstrap-server", node.kafka)
        assert (read.code, read.out) == (0, "before\n")
        assert (
            "stopped in t-0 before an open transaction at offset 1; `tidelog topic describe t` names its producer"
            in read.err
        )

        slow.commit_transaction(30)
        until(lambda: bool(events(node, "offload.released")), "the log says that it ended")
        until(lambda: (described(node)["tiered_end"] or 0) > 1, "what was held back is in the bucket")
        assert held_back(node) == []
        assert described(node)["open_transaction"] is None
        assert tidelog("consume", "t", "--exit-at-end", "--bootstrap-server", node.kafka).err == ""
        assert "has a transaction open" not in tidelog("topic", "describe", "t", "--bootstrap-server", node.kafka).out
