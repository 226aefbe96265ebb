"""The brokers of one command share a tier process. The loss of the process harms no broker, and a pause of one broker does not
harm the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.clients import TIERED, until
from tests.faults.processes import tier_process
from tests.service.cli.support import tidelog
from tests.support.live_files import live_files
from tests.support.node import Node
from tests.support.ports import consecutive_ports
from tests.support.processes import children
from tests.support.s3_servers import BUCKET, REGION, S3Server

BROKERS = (1, 2)
#: Each broker evicts offloaded segments every 200 ms.
SOON = ("--set", "log.retention.check.interval.ms=200")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, versitygw: S3Server) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("shared")
    flags = ["--s3-endpoint", versitygw.endpoint, "--s3-region", REGION, "--brokers", str(len(BROKERS)), *SOON]
    node = Node(directory, store=f"s3://{BUCKET}/shared-tier-process", flags=flags)
    ports = consecutive_ports(3 + 3 * len(BROKERS))
    node.kafka, node.grpc, node.http = (f"127.0.0.1:{port}" for port in ports[:3])
    with node as running:
        yield running


class Topic:
    """A tiered topic with a partition on each broker."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic(name, len(BROKERS), 1, config=TIERED)])[name].result(30)
        self.leaders: dict[int, int] = {}

        def is_led() -> bool:
            found = admin.list_topics(name, timeout=30).topics[name].partitions
            self.leaders = {partition.leader: number for number, partition in found.items()}
            return set(self.leaders) == set(BROKERS)

        until(is_led, "each broker leads a partition")
        self.sent = dict.fromkeys(self.leaders.values(), 0)

    def produce(self, records: int, partitions: set[int]) -> None:
        failed: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.node.kafka, "acks": "all", "enable.idempotence": True, "batch.size": 16_000}
        )
        for partition in partitions:
            for number in range(self.sent[partition], self.sent[partition] + records):
                value = b"%d " % number + b"x" * 2000
                producer.produce(self.name, value, partition=partition, on_delivery=lambda e, _: failed.append(e))
                producer.poll(0)
            self.sent[partition] += records
        assert producer.flush(60) == 0
        assert set(failed) == {None}

    def read(self, partitions: set[int]) -> None:
        """Reads everything: each record once, in order."""
        consumer = Consumer({"bootstrap.servers": self.node.kafka, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.name, each, 0) for each in partitions])
        following = {each: count() for each in partitions}
        left = sum(self.sent[each] for each in partitions)

        def is_read() -> bool:
            nonlocal left
            for message in consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                assert int((message.value() or b"").split()[0]) == next(following[partition])
                left -= 1
            return left == 0

        try:
            until(is_read, "all records are read")
        finally:
            consumer.close()

    def wait_offloaded(self, partitions: set[int]) -> None:
        """Waits until each disk has at most two segments of a partition: older records come from the store."""

        def local() -> int:
            where = [self.node.data_dir, *(self.node.data_dir / "brokers").iterdir()]
            return max(len(live_files(broker, f"{self.name}-{each}/*.log")) for broker in where for each in partitions)

        until(lambda: local() <= 2, "closed segments are in the store only")


def samples(node: Node, name: str) -> list[tuple[dict[str, str], float]]:
    _, page = node.get("/metrics")
    families = text_string_to_metric_families(page)
    return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]


def test_one_process_serves_both_brokers_and_is_counted_once(node: Node) -> None:
    topic = Topic(node, "both")
    both = set(topic.sent)
    topic.produce(300, both)
    topic.wait_offloaded(both)
    topic.read(both)
    tier = tier_process(node.pid)
    assert tier is not None
    assert len(children(node.pid)) == len(BROKERS) + 1
    assert not [each for broker in children(node.pid) - {tier} for each in children(broker)]
    assert samples(node, "tidelog_tier_process_running") == [({}, 1)]
    ((labels, resident),) = samples(node, "tidelog_tier_process_resident_bytes")
    assert not labels
    assert resident > 1 << 20
    for name in ("tidelog_store_uploaded_bytes_total", "tidelog_store_downloaded_bytes_total"):
        found = {labels["broker"]: value for labels, value in samples(node, name)}
        assert set(found) == {"1", "2"}
        assert min(found.values()) > 0
        assert sum(found.values()) < 2 * 600 * 3000, "each broker counts its own bytes"


def test_a_moved_partitions_chunks_are_copied_from_the_other_brokers_cache(node: Node) -> None:
    topic = Topic(node, "moved")
    (source, partition), (target, _) = topic.leaders.items()
    topic.produce(1000, {partition})
    topic.wait_offloaded({partition})
    topic.read({partition})

    def copied() -> float:
        """Chunks that the target has copied."""
        found = {labels["broker"]: value for labels, value in samples(node, "tidelog_cold_chunks_copied_total")}
        return found[str(target)]

    before = copied()
    where = (f"moved:{partition}", "--to", str(target))
    moved = tidelog("cluster", "move", *where, "--execute", "--timeout", "60", "-b", node.kafka)
    assert moved.code == 0, moved.err
    topic.read({partition})
    assert copied() > before, f"chunks of broker {source}"


def test_both_continue_after_kills_of_their_process(node: Node) -> None:
    """The process is killed while both brokers offload and read; no record is lost, and none comes twice."""
    topic = Topic(node, "killed")
    both = set(topic.sent)
    ((_, before),) = samples(node, "tidelog_tier_process_lost_total")
    for _ in range(4):
        topic.produce(200, both)
        if (tier := tier_process(node.pid)) is not None:
            os.kill(tier, signal.SIGKILL)
        topic.read(both)
    topic.wait_offloaded(both)
    topic.read(both)
    ((_, lost),) = samples(node, "tidelog_tier_process_lost_total")
    assert 1 <= lost - before <= 4


def test_both_continue_after_their_process_hangs(node: Node) -> None:
    topic = Topic(node, "hung")
    both = set(topic.sent)
    topic.produce(300, both)
    topic.wait_offloaded(both)
    hung = tier_process(node.pid)
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    topic.read(both)
    assert tier_process(node.pid) not in (None, hung)
    topic.produce(100, both)
    topic.wait_offloaded(both)


def test_a_paused_or_killed_broker_does_not_harm_the_other(node: Node) -> None:
    topic = Topic(node, "paused")
    both = set(topic.sent)
    topic.produce(300, both)
    topic.wait_offloaded(both)
    tier = tier_process(node.pid)
    two = pid_of(node, 2)
    other = {topic.leaders[1]}
    os.kill(two, signal.SIGSTOP)
    try:
        topic.read(other)
        topic.produce(300, other)
        topic.wait_offloaded(other)
        topic.read(other)
    finally:
        os.kill(two, signal.SIGKILL)
    topic.read(other)
    until(lambda: node.readyz() == 200, "the broker is back")
    topic.read(both)
    assert tier_process(node.pid) == tier, "the process has continued"


def pid_of(node: Node, broker: int) -> int:
    import json

    found: int = json.loads((Path(node.data_dir) / "brokers" / str(broker) / "broker-endpoints.json").read_text())[
        "pid"
    ]
    return found
