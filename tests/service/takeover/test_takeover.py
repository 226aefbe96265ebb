"""A node whose disk is lost is rebuilt from the bucket alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.faults.clients import until
from tests.support.clients import TIERED, consume, create, produce
from tests.support.node import Node

SETTINGS = {"tidelog.metadata.snapshot.interval.ms": 100}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "first", settings=SETTINGS) as node:
        yield node


def cluster_of(node: Node) -> str:
    return str(AdminClient({"bootstrap.servers": node.kafka}).list_topics(timeout=30).cluster_id)


def seal(node: Node, topic: str) -> None:
    from tests.faults.clients import seal as sealing

    sealing(node, topic)


def snapshots(node: Node, cluster: str) -> list[str]:
    return sorted(path.name for path in (node.store_path / cluster / "metadata").glob("*"))


def test_a_lost_disk_comes_back_from_the_bucket_and_the_old_node_is_fenced(node: Node, tmp_path: Path) -> None:
    create(node, "orders", 2, {**TIERED, "max.message.bytes": "123456"})
    create(node, "gone", 1, TIERED)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.delete_topics(["gone"])["gone"].result(30)
    produce(node, "orders", 500, **{"enable.idempotence": True})
    seal(node, "orders")
    cluster = cluster_of(node)
    until(lambda: len(snapshots(node, cluster)) > 0, "the metadata is in the bucket")
    until(lambda: (node.store_path / cluster / "topics" / "gone" / "topic.json").exists(), "the deletion is published")
    held = {key: value for key, (_, _, value) in consume(node, "orders", 2, 500).items()}
    node.kill()
    zombie = tmp_path / "zombie"
    shutil.copytree(node.data_dir, zombie)
    shutil.rmtree(node.data_dir)

    node.spawn()
    assert node.wait() == 1
    assert "--take-over CLUSTER_ID" in node.output_tail(1)

    node.flags += ["--take-over", cluster]
    node.start()
    assert cluster_of(node) == cluster
    assert {key: value for key, (_, _, value) in consume(node, "orders", 2, 500).items()} == held
    # Nothing was copied and nothing discarded: no event asks the operator to look for a copy.
    assert not {"directory.moved", "log.discarded"} & set(node.output().split())
    produce(node, "orders", 500, first=500, **{"enable.idempotence": True})
    found = consume(node, "orders", 2, 1000)
    assert len(found) == 1000
    assert max(offset for _, offset, _ in found.values()) + 1 >= 500
    assert set(admin.list_topics(timeout=30).topics) == {"__consumer_offsets", "orders"}
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    configs = admin.describe_configs([resource])[resource].result(30)
    assert configs["max.message.bytes"].value == "123456"
    seal(node, "orders")

    node.restart()  # --take-over stays on the command line
    assert len(consume(node, "orders", 2, 1000)) == 1000
    old = Node(tmp_path / "old", store=node.store)
    old.data_dir = zombie
    old.spawn()
    try:
        assert old.wait() == 1
        assert "taken over" in old.output_tail(3)
    finally:
        old.kill()
    produce(node, "orders", 100, first=1000)
    seal(node, "orders")
    assert len(consume(node, "orders", 2, 1100)) == 1100
    events = [line for line in node.output().splitlines() if "takeover.partition topic=orders" in line]
    assert len(events) == 2
    assert json.loads(node.get("/readyz")[1])["store"] == "ok"


def test_an_older_copy_without_a_topic_says_how_to_continue_the_cluster(node: Node, tmp_path: Path) -> None:
    """The backup and the lost directory are of the same start, so only the missing topic shows that the backup is older."""
    create(node, "orders", 1, TIERED)
    cluster = cluster_of(node)
    shutil.copytree(node.data_dir, tmp_path / "backup", ignore=shutil.ignore_patterns("*.tmp"))
    create(node, "later", 1, TIERED)
    for topic in ("orders", "later"):
        produce(node, topic, 100)
        seal(node, topic)
    node.kill()
    shutil.rmtree(node.data_dir)
    shutil.copytree(tmp_path / "backup", node.data_dir)

    node.spawn()
    assert node.wait() == 1
    advice = "keep this one and start on another, empty --data-dir with "
    assert f"is older than its cluster {cluster}: since then topic later was created" in node.output()
    node.flags += node.output().split(advice)[1].split('"')[0].split()
    node.data_dir = tmp_path / "another"
    node.start()
    for topic in ("orders", "later"):
        assert len(consume(node, topic, 1, 100)) == 100


def test_an_older_copy_of_a_lost_directory_names_the_way_to_continue_the_cluster(node: Node, tmp_path: Path) -> None:
    create(node, "orders", 1, TIERED)
    produce(node, "orders", 100)
    cluster = cluster_of(node)
    node.stop()
    shutil.copytree(node.data_dir, tmp_path / "backup")
    node.start()
    produce(node, "orders", 100, first=100)
    seal(node, "orders")
    node.kill()
    shutil.rmtree(node.data_dir)
    shutil.copytree(tmp_path / "backup", node.data_dir)

    node.spawn()
    assert node.wait() == 1
    advice = "keep this one and start on another, empty --data-dir with "
    assert advice in node.output()
    node.flags += node.output().split(advice)[1].split('"')[0].split()
    node.data_dir = tmp_path / "another"
    node.start()
    assert cluster_of(node) == cluster
    assert len(consume(node, "orders", 1, 200)) == 200
    produce(node, "orders", 100, first=200)
    assert len(consume(node, "orders", 1, 300)) == 300
