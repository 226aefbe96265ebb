"""`tidelog restore` and its `--verify`, on a directory store that a node has filled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.offline.restore import recovered
from service.directory.verify import verify
from service.takeover.plan import Claimed
from service.takeover.run import RecoveryPoint
from storage_tiers.errors import StoreRefused
from tests.faults.clients import seal, until
from tests.support.clients import TIERED, consume, create, produce
from tests.support.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, settings={"tidelog.metadata.snapshot.interval.ms": 100}) as node:
        yield node


def restored(node: Node, cluster: str, *more: str) -> tuple[int, str]:
    words = ["restore", cluster, "--store", node.store, "--data-dir", str(node.data_dir), *more]
    ran = CliRunner().invoke(app, words)
    return ran.exit_code, ran.output


def test_a_directory_is_restored_without_serving(node: Node) -> None:
    create(node, "orders", 1, TIERED)
    produce(node, "orders", 100)
    seal(node, "orders")
    (cluster,) = [path.name for path in node.store_path.iterdir() if (path / "cluster.json").exists()]
    until(lambda: any((node.store_path / cluster / "metadata").glob("*")), "the metadata is in the bucket")
    assert restored(node, cluster)[0] == 1, "another process uses the directory"
    node.kill()
    shutil.rmtree(node.data_dir)
    before = {path: path.read_bytes() for path in node.store_path.rglob("*.json")}

    code, told = restored(node, cluster, "--dry-run", "--verify")
    assert code == 0, told
    assert "orders-0: offsets [0, 100), as of " in told
    assert not node.data_dir.exists()
    assert {path: path.read_bytes() for path in node.store_path.rglob("*.json")} == before

    (segment, *_) = node.store_path.rglob("segments/*/*.log")
    kept = segment.read_bytes()
    segment.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    code, told = restored(node, cluster, "--verify")
    assert code == 1
    assert "is not sound" in told
    assert "delete nothing" in told
    assert "without --verify" not in told
    typo = restored(node, cluster[:-1], "--dry-run")[1]
    assert f"holds no cluster {cluster[:-1]}: it holds {cluster} with 1 topic (orders)" in typo
    nowhere = node.store_path.with_name("mistyped")
    words = ["restore", cluster, "--store", str(nowhere), "--data-dir", str(node.data_dir)]
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, ran.output) == (
        1,
        f"tidelog: there is no directory {nowhere}: mount it, or correct --store\n",
    )
    assert not nowhere.exists()
    node.flags = ["--take-over", cluster, "--verify"]
    node.spawn()
    assert node.wait() == 1
    assert "is not sound" in node.output_tail(12)
    assert not node.data_dir.exists()
    segment.write_bytes(kept)

    code, told = restored(node, cluster, "--verify")
    assert code == 0, told
    assert f"is now node 1 of cluster {cluster}: 1 partition\n" in told
    assert told.startswith(f"sound: every byte of cluster {cluster} in the store was verified\n")
    assert "belongs to cluster" in restored(node, cluster)[1]
    node.flags = []
    node.start()
    assert len(consume(node, "orders", 1, 100)) == 100


async def test_a_check_runs_in_a_directory_with_a_file_of_a_packages_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text("raise AssertionError('the current directory was searched')\n")
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreRefused, match="the store holds no cluster none"):
        await verify("store", "none", endpoint=None, region=None)


def point(topic: str, partition: int, end: int) -> RecoveryPoint:
    return RecoveryPoint(topic, partition, Claimed(1, 0, end, 1_700_000_000_000))


def test_partitions_without_records_share_a_line() -> None:
    one = [point("a", 0, 7), point("a", 1, 0)]
    assert list(recovered(one)) == [
        "a-0: offsets [0, 7), as of 2023-11-14T22:13:20+00:00",
        "1 partition is empty, with nothing in the store: a (1)",
    ]
    many = [point(f"t{topic:03}", partition, 0) for topic in range(12) for partition in range(1000)]
    (line,) = recovered(many)
    assert line.startswith("12000 partitions are empty, with nothing in the store: t000 (1000), t001 (1000), ")
    assert line.endswith(", t009 (1000), 2 more topics")
    assert list(recovered([])) == []
