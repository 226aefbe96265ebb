"""An empty data directory may be new, or may replace a lost one: the node asks the store which before it begins."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from service.directory.beginning import NAMED_CLUSTERS, refusal
from service.metadata.store import DIRECTORY as METADATA_DIRECTORY
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.clusters import MAX_FOLDERS, ClusterFound, find_clusters
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import StoreRefused
from tests.faults.clients import seal, until
from tests.support.clients import TIERED, consume, create, produce
from tests.support.node import Node
from tests.support.ports import free_port
from tests.support.s3_proxy import S3Proxy, hang_up_before
from tests.support.s3_servers import BUCKET, S3Server


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


def clusters(node: Node) -> list[str]:
    """The ids of the clusters that have folders in the store."""
    return sorted(path.name for path in node.store_path.iterdir() if (path / "cluster.json").exists())


def lose_the_disk(node: Node) -> None:
    node.kill()
    shutil.rmtree(node.data_dir)


def test_an_empty_directory_is_refused_beside_a_cluster(node: Node) -> None:
    create(node, "orders", 1, TIERED)
    produce(node, "orders", 10)
    until(lambda: len(clusters(node)) == 1, "the store is claimed")
    (cluster,) = clusters(node)
    until(lambda: (node.store_path / cluster / "topics" / "orders").exists(), "the topic is published")
    lose_the_disk(node)
    node.spawn()
    assert node.wait() == 1
    said = node.output_tail(1)
    for word in (cluster, "1 topic (orders)", "--new-cluster", str(node.data_dir)):
        assert word in said, said
    assert clusters(node) == [cluster]
    assert not node.data_dir.exists()


def test_the_new_cluster_option_starts_a_cluster_and_may_stay_on_the_command_line(node: Node) -> None:
    (first,) = clusters(node)
    lose_the_disk(node)
    node.flags += ["--new-cluster"]
    node.start()
    create(node, "orders", 1, TIERED)
    produce(node, "orders", 10)
    until(lambda: len(clusters(node)) == 2, "the store is claimed")
    node.restart()
    assert len(consume(node, "orders", 1, 10)) == 10
    assert len(clusters(node)) == 2
    assert first in clusters(node)


def test_an_empty_directory_waits_for_an_unreachable_store(tmp_path: Path, versitygw: S3Server) -> None:
    with S3Proxy(versitygw.endpoint) as proxy:
        proxy.always(hang_up_before())
        node = Node(tmp_path, store=f"s3://{BUCKET}/{tmp_path.name}", flags=["--s3-endpoint", proxy.endpoint])
        node.http = f"127.0.0.1:{free_port()}"
        try:
            node.spawn()
            until(
                lambda: node.readyz() == 503 and "waits for an answer" in node.get("/readyz")[1], "the node reports it"
            )
            assert json.loads(node.get("/readyz")[1])["recovered"] is False
            assert node.get("/metrics") == (503, "the node does not serve yet; retry\n")
            assert not node.data_dir.exists()
            assert node.stop() == 0
            assert "node.stopped code=0" in node.output_tail(1)

            node.spawn()
            proxy.clear()
            node.wait_ready()
            assert node.get("/metrics")[0] == 200
            create(node, "orders", 1, TIERED)
        finally:
            node.kill()


async def test_the_clusters_of_a_store_are_found() -> None:
    store = MemoryStore(SystemClock())
    assert await find_clusters(store) == ()
    for key in ("a/cluster.json", "a/topics/t/topic.json", "b/topics/u/topic.json", "not ours/x", "c/other", "file"):
        await store.put(key, b"")
    first, second = await find_clusters(store)
    assert (first.cluster_id, first.topics, first.some_topics) == ("a", 1, ("t",))
    assert first.started_ms is not None
    assert second == ClusterFound("b", None, 1, ("u",))
    for number in range(MAX_FOLDERS):
        await store.put(f"{number}/x", b"")
    with pytest.raises(StoreRefused, match="--new-cluster"):
        await find_clusters(store)


def test_a_refusal_is_bounded() -> None:
    found = [ClusterFound(f"c{number:03}", 0, 9, ("t",)) for number in range(100)]
    said = refusal("/d", "s3://b", found)
    assert "100 clusters: c000 with 9 topics (t, …), last started at 1970-01-01T00:00:00Z; c001" in said
    assert f"and {100 - NAMED_CLUSTERS} more" in said


def test_a_node_with_offloaded_records_does_not_start_without_a_store(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "kept", 1, {**TIERED, "local.retention.ms": "-2"})
        create(node, "evicted", 1, TIERED)
        for topic in ("kept", "evicted"):
            produce(node, topic, 10)
            seal(node, topic)
        local = node.data_dir / "evicted-0"
        until(lambda: min(path.name for path in local.glob("*.log")) == f"{10:020d}.log", "its records left the disk")
        node.stop()
        store, node.store = node.store, "none"
        node.spawn()
        assert node.wait() == 1
        assert "tidelog: records of evicted-0 are in an object store and no longer in " in node.output()
        node.store = store  # do as the error advises
        node.start()
        assert len(consume(node, "evicted", 1, 10)) == 10
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.delete_topics(["evicted"])["evicted"].result(30)
        until(lambda: not local.exists(), "the topic is gone")
        node.stop()
        node.store = "none"
        node.start()
        assert len(consume(node, "kept", 1, 10)) == 10


@pytest.mark.parametrize("topics", [1, 0], ids=["beside partitions", "alone"])
def test_an_identity_without_metadata_begins_no_cluster_beside_its_own(node: Node, topics: int) -> None:
    """The node's metadata log is lost, and a unit file still passes `--new-cluster`: a second cluster would be a
    mistake."""
    if topics:
        create(node, "orders", topics, TIERED)
        produce(node, "orders", 10)
        seal(node, "orders")
    (cluster,) = clusters(node)
    node.stop()
    shutil.rmtree(node.data_dir / METADATA_DIRECTORY)
    before = sorted(path.relative_to(node.data_dir) for path in node.data_dir.rglob("*"))
    node.flags = ["--new-cluster"]
    node.spawn()
    assert node.wait() == 1
    said = node.output_tail(1)
    assert f"holds 1 cluster: {cluster}" in said and "__cluster_metadata-0 is gone" in said, said
    assert sorted(path.relative_to(node.data_dir) for path in node.data_dir.rglob("*")) == before
    assert clusters(node) == [cluster]
    node.flags = ["--take-over", cluster]
    node.start()
    if topics:
        assert len(consume(node, "orders", 1, 10)) == 10
    assert clusters(node) == [cluster]


def test_an_interrupted_first_start_is_repeated(node: Node) -> None:
    """The node died after it wrote its identity, before its metadata log's first entry and before it claimed the
    store."""
    node.stop()
    shutil.rmtree(node.store_path)
    for file in (node.data_dir / METADATA_DIRECTORY).iterdir():
        file.unlink()
    node.start()
    create(node, "orders", 1, TIERED)
    produce(node, "orders", 10)
    node.restart()
    assert len(consume(node, "orders", 1, 10)) == 10
