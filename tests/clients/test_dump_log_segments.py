"""Kafka's own DumpLogSegments reads what a node leaves on disk: logs, both indexes, producer snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node import Node
from tests.support.talker import Talker

RECORDS = 3000


@pytest.fixture(scope="module")
def partition_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of several segments, written by an idempotent producer; its node has stopped."""
    with Node(tmp_path_factory.mktemp("dump")) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        configs = {"internal.segment.bytes": "20000", "remote.storage.enable": "false", "index.interval.bytes": "4096"}
        admin.create_topics([NewTopic("dumped", 1, 1, config=configs)])["dumped"].result(30)
        producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "batch.size": 4096,
                "linger.ms": 1,
            }
        )
        for i in range(RECORDS):
            producer.produce("dumped", key=b"%d" % i, value=b"%08d" % i * 20, timestamp=1_700_000_000_000 + i)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert node.stop() == 0
        return node.partition_dir("dumped")


def dumped(java: Talker, *arguments: str) -> str:
    answer = java.ask(command="tool", tool="kafka.tools.DumpLogSegments", arguments=arguments)
    assert answer["status"] == 0, answer["printed"]
    return str(answer["printed"])


def files(directory: Path, suffix: str) -> str:
    found = sorted(directory.glob(f"*{suffix}"))
    assert found, f"no {suffix} in {directory}"
    return ",".join(map(str, found))


def test_every_record_of_every_segment_is_read(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--deep-iteration", "--print-data-log", "--files", files(partition_dir, ".log"))
    assert len(list(partition_dir.glob("*.log"))) > 2
    offsets = [int(n) for n in re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert "isvalid: false" not in printed
    payloads = re.findall(r"payload: (\d+)", printed)
    assert payloads == [f"{i:08d}" * 20 for i in range(RECORDS)]


def test_offset_indexes_pass_its_sanity_check(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--index-sanity-check", "--files", files(partition_dir, ".index"))
    assert printed.count("passed sanity check") == len(list(partition_dir.glob("*.index")))
    verified = dumped(java, "--verify-index-only", "--files", files(partition_dir, ".index"))
    assert "Mismatches" not in verified


def test_time_indexes_agree_with_the_log(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--verify-index-only", "--files", files(partition_dir, ".timeindex"))
    assert "Found timestamp mismatch" not in printed
    assert "Found out of order timestamp" not in printed


def test_producer_snapshots_name_the_producer(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--files", files(partition_dir, ".snapshot"))
    assert re.search(r"producerId: 0 producerEpoch: 0 .*lastSequence: \d+", printed)
