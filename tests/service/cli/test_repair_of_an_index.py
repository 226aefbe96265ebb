"""A segment that lacks only its `.idx`, as an operator meets it: its records are read again after the repair, also by a node
that is rebuilt from the bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.json import decode
from tests.service.cli.support import tidelog
from tests.service.cli.test_cold_repair import RECORDS, SETTINGS, at, consumed, lines, manifests, offload
from tests.support.clients import until
from tests.support.node import Node

#: Rounds of retention follow each other at once.
EXPIRING = {"log.retention.check.interval.ms": 100}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, settings={**SETTINGS, **EXPIRING, "tidelog.metadata.snapshot.interval.ms": 100}) as running:
        yield running


def indexes(node: Node) -> list[Path]:
    return sorted(path for path in node.store_path.rglob("*.idx*") if path.is_file() and "t" in path.parts)


def cluster_of(node: Node) -> str:
    (cluster,) = (path.name for path in node.store_path.iterdir() if (path / "cluster.json").exists())
    until(lambda: any((node.store_path / cluster / "metadata").glob("*")), "the metadata is in the bucket")
    return cluster


def take_over(node: Node) -> None:
    """Loses the node's disk, and has it rebuilt from the bucket."""
    node.flags = ["--take-over", cluster_of(node)]
    node.kill()
    shutil.rmtree(node.data_dir)
    node.spawn()


@pytest.mark.parametrize("place", [0, 2], ids=["the first", "the newest"])
def test_a_lost_index_is_made_again(node: Node, place: int) -> None:
    assert at(node, "topic", "create", "t").code == 0
    for part in range(3):
        offload(node, "t", part * RECORDS)
    expected = lines(0, 3 * RECORDS).splitlines(keepends=True)
    indexes(node)[place].unlink()
    node.restart()
    dry = at(node, "cold", "repair", "t")
    assert dry.code == 0 and "--accept-loss" not in dry.out, dry.out
    first = place * RECORDS
    assert f"offsets [{first}, {first + RECORDS}), whose segments lack only their .idx" in dry.out
    assert at(node, "cold", "repair", "t", "--apply").code == 0
    assert consumed(node, "t") == expected
    assert at(node, "cold", "repair", "t").out.splitlines()[-1] == "t-0: nothing to repair"
    sound = tidelog("fsck", "--store", node.store)
    assert sound.code == 0, sound.out
    take_over(node)
    node.wait_ready()
    assert consumed(node, "t") == expected
    offload(node, "t", 3 * RECORDS)
    assert consumed(node, "t") == lines(0, 4 * RECORDS).splitlines(keepends=True)


def test_a_partition_whose_records_expired_leads_again_after_its_disk_and_the_index_of_its_end_were_lost(
    node: Node,
) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    assert at(node, "topic", "alter", "t", "-c", "retention.ms=1").code == 0
    (manifest,) = manifests(node, "t")
    until(lambda: not decode(manifest.read_bytes()).segments, "the records have expired")
    (lost,) = indexes(node)
    lost.unlink()
    take_over(node)
    until(lambda: "the .idx of its end" in at(node, "cold", "repair", "t").out, "the node says what it would do")
    assert node.readyz() == 503
    assert at(node, "cold", "repair", "t", "--apply").code == 0
    node.wait_ready()
    assert at(node, "topic", "alter", "t", "-c", "retention.ms=-1").code == 0
    offload(node, "t", RECORDS)
    assert consumed(node, "t") == lines(RECORDS, RECORDS).splitlines(keepends=True)
    assert tidelog("fsck", "--store", node.store).code == 0
