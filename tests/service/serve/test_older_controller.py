"""A controller that was started with an older directory does not make brokers lose partitions that it does not know.

In the first test the directory is from an earlier start of the controller; the store is hidden, because it would end that
controller. In the other tests the directory was copied while the controller ran, and since then partitions have only moved:
only a metadata snapshot in the store shows that the copy is older.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpc_api.sdk.blocking import BlockingClient
from service.controller.applied_metadata import FILE_NAME, read_position
from service.directory.home import FILE_NAME as HOME
from tests.faults.clients import until
from tests.service.cli.support import tidelog
from tests.service.serve.test_cluster import consumed, create, produce
from tests.support.cluster import Cluster
from tests.support.node import Node


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}", {"tidelog.metadata.snapshot.interval.ms": 1000}) as made:
        yield made


def hide_store(node: Node) -> None:
    node.store_path.rename(node.directory / "away")
    node.store_path.write_text("no directory")


def show_store(node: Node) -> None:
    node.store_path.unlink()
    (node.directory / "away").rename(node.store_path)


@pytest.mark.parametrize("restarted", [False, True])
def test_running_brokers_keep_the_newest_metadata_beside_an_older_controller(cluster: Cluster, restarted: bool) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    one.stop()
    older, newest = one.directory / "older", one.directory / "newest"
    shutil.copytree(one.data_dir, older)
    one.start()
    create(cluster, 1, "t")
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600))
    one.stop()
    one.data_dir.rename(newest)
    older.rename(one.data_dir)
    hide_store(one)  # the store would end the older controller at once
    one.spawn()
    until(lambda: "controller.went_back" in two.output(), "broker 2 has seen the older metadata")
    with BlockingClient.connect(
        two.grpc
    ) as client:  # a Kafka client might ask broker 1, which shows the older metadata
        assert {each.leader for each in client.topic("t").partitions} == {1, 2, 3}, "it keeps the newest metadata"
    assert len(list(two.data_dir.glob("t-?"))) == 2
    one.kill()
    shutil.rmtree(one.data_dir)
    newest.rename(one.data_dir)
    show_store(one)
    if restarted:
        two.kill()
        two.spawn()
    one.start()
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600, 660))
    assert consumed(cluster, 1, "t", "g", 660) == set(range(660))


def put_back(one: Node) -> tuple[Path, Path]:
    """Copies the controller's directory while it runs. Returns the copy's path and the path to which the newest directory
    moves."""
    older = one.directory / "older"
    shutil.copytree(one.data_dir, older, ignore=shutil.ignore_patterns("*.tmp"))
    return older, one.directory / "newest"


def move_everything_to(cluster: Cluster, broker: int) -> None:
    at = ("-b", cluster.nodes[broker].kafka)
    moved = tidelog("cluster", "move", "t", "--to", str(broker), "--execute", "--timeout", "60", *at)
    assert moved.code == 0, moved.err
    cluster.wait_leaders(broker, "t", {broker})


def start_on_older_metadata(cluster: Cluster, older: Path, newest: Path) -> None:
    """Kills all brokers, and starts them with the controller's older directory while the store is away. Returns once brokers 2
    and 3 have ended."""
    one, two, three = cluster.nodes.values()
    for node in cluster.nodes.values():
        node.kill()
    one.data_dir.rename(newest)
    older.rename(one.data_dir)
    hide_store(one)
    one.spawn()
    for node in (two, three):
        node.spawn()
        assert node.wait() == 1
        assert "Start the controller with its newest data directory" in node.output_tail()


def noted(node: Node) -> int:
    position = read_position(str(node.data_dir))
    return 0 if position is None else position.offset


def last_entry(controller: Node) -> int:
    """The offset of the newest record in the controller's metadata log."""
    lines = controller.get("/metrics")[1].splitlines()
    (line,) = (each for each in lines if each.startswith("kafka_controller_kafkacontroller_lastappliedrecordoffset "))
    return int(float(line.split()[1]))


def wait_noted(cluster: Cluster) -> None:
    """Returns once brokers 2 and 3 have noted that the moves are complete."""
    kept = cluster.nodes[1].data_dir
    until(lambda: not list(kept.glob("t-?")), "broker 1 has deleted its logs")
    end = last_entry(cluster.nodes[1])
    until(lambda: all(noted(cluster.nodes[each]) >= end for each in (2, 3)), "both have noted the moves")


def test_brokers_end_on_an_older_controller_until_the_newest_one_is_back(cluster: Cluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    create(cluster, 1, "t")
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600))
    older, newest = put_back(one)
    move_everything_to(cluster, 2)
    produce(cluster, 2, "t", range(600, 900))
    wait_noted(cluster)
    start_on_older_metadata(cluster, older, newest)
    assert len(list(two.data_dir.glob("t-?"))) == 6, "nothing was set aside"
    one.kill()
    show_store(one)
    shutil.rmtree(one.data_dir)
    newest.rename(one.data_dir)
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_leaders(1, "t", {2})
    produce(cluster, 1, "t", range(900, 960))
    assert consumed(cluster, 1, "t", "g", 960) == set(range(960))


def test_brokers_that_end_on_an_older_controller_join_the_cluster_that_is_taken_over(cluster: Cluster) -> None:
    one, two = cluster.nodes[1], cluster.nodes[2]
    create(cluster, 1, "t")
    cluster.wait_leaders(1, "t", {1, 2, 3})
    older, newest = put_back(one)
    produce(cluster, 1, "t", range(600))
    move_everything_to(cluster, 2)
    sealed = tidelog("topic", "seal", "t", "--wait", "--timeout", "60", "-b", two.kafka)
    assert sealed.code == 0, sealed.err
    wait_noted(cluster)
    start_on_older_metadata(cluster, older, newest)
    one.kill()
    show_store(one)
    shutil.rmtree(newest)
    one.data_dir.rename(one.directory / "kept")
    advice = "start the controller's node on an empty --data-dir with "
    one.flags += two.output().rsplit(advice, 1)[1].split(", then this broker again", 1)[0].split()
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_leaders(2, "t", {1})
    produce(cluster, 2, "t", range(600, 660))
    assert consumed(cluster, 2, "t", "g", 660) == set(range(660))


def test_a_snapshot_in_the_store_ends_an_older_controller_before_it_claims_the_store(cluster: Cluster) -> None:
    one = cluster.nodes[1]
    create(cluster, 1, "t")
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600))
    older, newest = put_back(one)
    move_everything_to(cluster, 2)
    produce(cluster, 2, "t", range(600, 900))
    cluster_id = str(cluster.admin(1).list_topics(timeout=10).cluster_id)
    snapshots = one.store_path / cluster_id / "metadata"
    end = last_entry(one)
    until(lambda: max(int(each.name.split("-")[1]) for each in snapshots.iterdir()) >= end, "a snapshot of the moves")
    one.kill()
    one.data_dir.rename(newest)
    older.rename(one.data_dir)
    one.spawn()
    assert one.wait() == 1
    assert "is older than its cluster" in one.output_tail()
    assert "its metadata has reached entry" in one.output_tail()
    assert "If its disk is lost, first let the other brokers offload their records" in one.output_tail()
    shutil.rmtree(one.data_dir)
    newest.rename(one.data_dir)
    one.start()
    cluster.wait_leaders(1, "t", {2})
    assert consumed(cluster, 1, "t", "g", 900) == set(range(900))


@pytest.fixture
def changed_unseen(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose store has no snapshot of what changes while it runs."""
    with Cluster(
        tmp_path, f"file://{tmp_path / 'store'}", {"tidelog.metadata.snapshot.interval.ms": 3_600_000}
    ) as made:
        yield made


def test_a_cluster_that_continues_from_older_metadata_sets_the_newer_logs_aside(changed_unseen: Cluster) -> None:
    """As docs/operations.md says at `controller.went_back`. Left in place, such a log would be led once its partition comes."""
    cluster = changed_unseen
    one, two, three = cluster.nodes.values()
    create(cluster, 1, "t")
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600))
    leaders = cluster.leaders(1, "t")
    older, newest = put_back(one)
    move_everything_to(cluster, 2)
    produce(cluster, 2, "t", range(600, 900))
    wait_noted(cluster)
    for node in cluster.nodes.values():
        node.kill()
    one.data_dir.rename(newest)
    older.rename(one.data_dir)
    one.spawn()
    for node in (two, three):
        node.spawn()
        assert node.wait() == 1
        for name in (FILE_NAME, HOME):
            (node.data_dir / name).unlink()
    for node in cluster.nodes.values():
        node.wait_ready() if node is one else node.start()
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(900, 960))
    move_everything_to(cluster, 2)
    kept = {each for each in range(600, 900) if leaders[each % 6] == 2}  # broker 2 has those partitions in both
    assert consumed(cluster, 1, "t", "g", 760) == set(range(600)) | kept | set(range(900, 960))
    assert len(list(two.data_dir.glob("t-*-stray"))) == 4
