"""Three brokers of one controller share a store: each offloads what it leads, and the controller writes the cluster's files."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition

from service.cli.client.repair import repairs
from storage_tiers.cold.manifest import keys
from tests.faults.clients import until
from tests.service.cli.support import tidelog
from tests.service.serve.test_cluster import PARTITIONS, consumed, create, produce
from tests.support.cluster import Cluster
from tests.support.live_files import live_files, read_live
from tests.support.node import Node, NodeFailed

QUICK = {
    "log.local.retention.ms": 1,
    "log.retention.check.interval.ms": 200,
    "tidelog.tier.max.lag.ms": 100,
    "tidelog.tier.delete.grace.ms": 1000,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}", QUICK) as made:
        yield made


def manifests(cluster: Cluster, topic: str) -> dict[int, dict[str, Any]]:
    """The topic's manifests by partition."""
    found = {}
    store = cluster.nodes[1].store_path
    for path in live_files(store, "**/manifests/*.json"):
        parsed = keys.parse(str(path.relative_to(store)))
        content = read_live(path)
        if isinstance(parsed, keys.ManifestKey) and parsed.topic == topic and content is not None:
            found[parsed.partition] = json.loads(content)
    return found


def wait_offloaded(cluster: Cluster, topic: str, end: int) -> dict[int, dict[str, Any]]:
    """Waits until the manifest of each partition ends at `end`; returns the manifests."""

    def has_ended() -> bool:
        shown = manifests(cluster, topic)
        return len(shown) == PARTITIONS and {each["end"] for each in shown.values()} == {end}

    until(has_ended, f"every partition of {topic} is offloaded up to {end}")
    return manifests(cluster, topic)


def local_bytes(cluster: Cluster, topic: str) -> int:
    return sum(
        len(read_live(path) or b"")
        for node in cluster.nodes.values()
        for path in live_files(node.data_dir, f"{topic}-*/*.log")
    )


def incarnation(cluster: Cluster) -> dict[str, Any]:
    (path,) = live_files(cluster.nodes[1].store_path, "*/cluster.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_each_broker_offloads_what_it_leads(cluster: Cluster) -> None:
    create(cluster, 3, "t")
    produce(cluster, 2, "t", range(600))
    shown = wait_offloaded(cluster, "t", 100)
    leaders = cluster.leaders(1, "t")
    assert {number: each["writer"]["node_id"] for number, each in shown.items()} == leaders
    assert set(leaders.values()) == {1, 2, 3}
    assert {each["incarnation"] for each in shown.values()} == {1}
    assert (incarnation(cluster)["incarnation"], incarnation(cluster)["holder"]["node_id"]) == (1, 1)
    until(lambda: local_bytes(cluster, "t") == 0, "the local copies are evicted")
    assert consumed(cluster, 2, "t", "g", 600) == set(range(600))
    behind = Consumer({"bootstrap.servers": cluster.nodes[2].kafka, "group.id": "behind"})
    behind.commit(offsets=[TopicPartition("t", number, 40) for number in range(PARTITIONS)], asynchronous=False)
    behind.close()
    described = tidelog("group", "describe", "behind", "--json", "-b", cluster.nodes[1].kafka)
    assert described.code == 0, described.err
    assert [row["in_bucket"] for row in described.json["partitions"]] == [60] * PARTITIONS, "whichever broker leads it"


def test_brokers_write_under_the_next_claim_of_their_controller(cluster: Cluster) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    until(lambda: incarnation(cluster)["incarnation"] == 2, "the controller has claimed the store again")
    cluster.wait_leaders(2, "t", {1, 2, 3})
    count = 10

    def has_written_under_the_second() -> bool:
        nonlocal count
        produce(cluster, 2, "t", range(60))
        count += 10
        return {each["incarnation"] for each in wait_offloaded(cluster, "t", count).values()} == {2}

    until(has_written_under_the_second, "every broker writes under the second claim")
    assert all(node.running for node in cluster.nodes.values())


def test_a_broker_paused_beside_the_deletion_of_its_topic_continues(cluster: Cluster) -> None:
    create(cluster, 1, "gone")
    create(cluster, 1, "t")
    produce(cluster, 1, "gone", range(60))
    wait_offloaded(cluster, "gone", 10)
    two = cluster.nodes[2]
    produce(cluster, 1, "gone", range(60, 120))
    two.signal(signal.SIGSTOP)
    admin = cluster.admin(1)
    admin.delete_topics(["gone"])["gone"].result(30)
    until(lambda: {each["state"] for each in manifests(cluster, "gone").values()} == {"deleted"}, "all are deleted")
    two.signal(signal.SIGCONT)
    cluster.wait_leaders(2, "t", {1, 2, 3})
    produce(cluster, 3, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    assert two.running
    until(lambda: not live_files(cluster.nodes[1].store_path, "**/gone/**/*.log"), "the objects of the topic are swept")


def test_an_unclean_election_continues_a_lost_disks_partitions_after_the_buckets_records(cluster: Cluster) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(600))
    wait_offloaded(cluster, "t", 100)
    lost = [number for number, leader in cluster.leaders(1, "t").items() if leader == 2]
    two = cluster.nodes[2]
    two.kill()
    shutil.rmtree(two.data_dir)
    two.start()
    cluster.wait_leaders(1, "t", {1, 3, -1})
    admin = cluster.admin(3)
    wanted = [TopicPartition("t", number) for number in range(PARTITIONS)]
    elected = admin.elect_leaders(ElectionType.UNCLEAN, wanted).result(30)
    assert {each.partition for each, error in elected.items() if error is None} == set(lost)
    assert {error.code() for error in elected.values() if error is not None} == {KafkaError.ELECTION_NOT_NEEDED}
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 3, "t", range(600, 1200))
    wait_offloaded(cluster, "t", 200)
    assert consumed(cluster, 2, "t", "g", 1200) == set(range(1200))


def test_a_paused_broker_acknowledges_nothing_after_its_partitions_have_another_disk(cluster: Cluster) -> None:
    """When the broker continues, a request waits in its socket: the broker must not append it under its old metadata."""
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    old = cluster.nodes[2]
    mine = next(number for number, leader in cluster.leaders(1, "t").items() if leader == 2)
    acknowledged: list[tuple[KafkaError | None, int | None]] = []
    producer = Producer({"bootstrap.servers": cluster.nodes[1].kafka, "acks": "all", "linger.ms": 0})

    def send(value: bytes) -> None:
        producer.produce("t", value, partition=mine, on_delivery=lambda e, m: acknowledged.append((e, m.offset())))

    send(b"before")
    assert producer.flush(30) == 0
    old.signal(signal.SIGSTOP)
    send(b"in the socket of the paused broker")
    producer.poll(0.5)
    cluster.wait_leaders(1, "t", {1, 3, -1})
    new = Node(old.directory / "new", store=old.store, settings=QUICK, flags=old.flags)
    with new:
        admin = cluster.admin(1)
        admin.elect_leaders(ElectionType.UNCLEAN, None).result(30)
        cluster.wait_leaders(1, "t", {1, 2, 3})
        old.signal(signal.SIGCONT)
        assert producer.flush(60) == 0
        until(lambda: not old.running, "the paused broker has ended")
        assert "a newer start has registered" in old.output()
        assert [error for error, _ in acknowledged] == [None, None]
        consumer = Consumer({"bootstrap.servers": cluster.nodes[1].kafka, "group.id": "g"})
        consumer.assign([TopicPartition("t", mine, 0)])
        found: dict[int, bytes | None] = {}

        def has_read_it() -> bool:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found[message.offset() or 0] = message.value()
            return found.get(acknowledged[1][1] or 0) == b"in the socket of the paused broker"

        until(has_read_it, "the acknowledged record is in the log")
        consumer.close()


def test_files_of_the_cluster_are_repaired_through_the_controllers_node(cluster: Cluster) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    store = cluster.nodes[1].store_path
    (path,) = live_files(store, "*/topics/t/topic.json")
    path.unlink()
    of_two = list(
        islice(repairs(cluster.nodes[2].grpc, [("t", 0, cluster.nodes[2].grpc)], cluster=True, apply=True), 2)
    )
    assert ["repair them through that node" in each.refused for each in of_two] == [True, True]
    assert not path.exists()
    ours = next(number for number, leader in cluster.leaders(1, "t").items() if leader == 1)
    found = list(repairs(cluster.nodes[1].grpc, [("t", ours, cluster.nodes[1].grpc)], cluster=True, apply=True))
    assert [each.refused for each in found] == ["", "", ""]
    assert path.exists()


def test_a_take_over_ends_every_broker_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    others = [number for number, leader in cluster.leaders(2, "t").items() if leader > 1]
    cluster.nodes[1].kill()
    flags = ["--take-over", incarnation(cluster)["cluster_id"]]
    with Node(tmp_path / "next", store=cluster.nodes[1].store, settings=QUICK, flags=flags):
        # A record for each broker to offload. A broker may end before it takes the record, because it also sweeps the store.
        producer = Producer({"bootstrap.servers": cluster.nodes[2].kafka, "message.timeout.ms": 5000})
        for number in others:
            producer.produce("t", b"late", partition=number)
        producer.flush(10)
        for broker in (2, 3):
            node = cluster.nodes[broker]
            until(lambda node=node: not node.running, f"broker {broker} has ended")  # type: ignore[misc]
            assert "the cluster was taken over" in node.output()


def test_a_broker_with_another_store_writes_nothing_there(cluster: Cluster, tmp_path: Path) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    wait_offloaded(cluster, "t", 10)
    two, right = cluster.nodes[2], cluster.nodes[2].store
    two.kill()
    two.store = f"file://{tmp_path / 'other'}"
    two.start()
    until(lambda: "store.went_backwards" in two.output(), "broker 2 has seen that its store is another one")
    assert not list((tmp_path / "other").rglob("*.json"))
    two.kill()
    two.store = right
    two.start()
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(60, 120))
    wait_offloaded(cluster, "t", 20)
    assert consumed(cluster, 1, "t", "g", 120) == set(range(120))


def test_a_broker_without_the_store_of_its_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    until(lambda: live_files(cluster.nodes[1].store_path, "*/cluster.json"), "the controller has claimed the store")
    controller = cluster.nodes[2].flags[2:]
    four = Node(tmp_path / "4", store="none", flags=[*controller, "--node-id", "4"])
    with pytest.raises(NodeFailed, match="give the controller's --store here, too"), four:
        pass
    four.store = cluster.nodes[1].store
    with four:
        assert cluster.brokers(1) == {1, 2, 3, 4}
