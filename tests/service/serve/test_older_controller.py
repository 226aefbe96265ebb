"""A controller that was started with an older directory does not make brokers lose what it does not know."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.clients import until
from tests.service.serve.test_cluster import consumed, create, produce
from tests.support.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}") as made:
        yield made


@pytest.mark.parametrize("restarted", [False, True])
def test_records_of_unknown_topics_are_served_once_the_newest_metadata_are_back(
    cluster: Cluster, restarted: bool
) -> None:
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
    one.store_path.rename(one.directory / "away")  # else the store ends the older controller at once
    one.store_path.write_text("no directory")
    one.spawn()
    until(lambda: "t" not in cluster.admin(2).list_topics(timeout=10).topics, "broker 2 has the older metadata")
    until(lambda: not list(two.data_dir.glob("t-?")), "broker 2 has set the logs aside")
    assert len(list(two.data_dir.glob("t-*-stray"))) == 2
    one.kill()
    shutil.rmtree(one.data_dir)
    newest.rename(one.data_dir)
    one.store_path.unlink()
    (one.directory / "away").rename(one.store_path)
    if restarted:
        two.kill()
        two.spawn()
    one.start()
    cluster.wait_leaders(1, "t", {1, 2, 3})
    produce(cluster, 1, "t", range(600, 660))
    assert consumed(cluster, 1, "t", "g", 660) == set(range(660))
    assert "partition.taken_up" in two.output()
