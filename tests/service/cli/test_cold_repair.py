"""`tidelog cold repair` as an operator runs it, through a node whose bucket lost manifests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.cli.support import Ran, tidelog
from tests.support.clients import until
from tests.support.node import Node

RECORDS = 300
#: Nothing of a closed segment stays on the disk.
SETTINGS = {"log.local.retention.bytes": 1, "log.local.retention.ms": 500}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, settings=SETTINGS) as running:
        yield running


def at(node: Node, *words: str | Path, stdin: bytes | None = None) -> Ran:
    return tidelog(*words, "--bootstrap-server", node.kafka, stdin=stdin)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"record %d\n" % number for number in range(first, first + count))


def offload(node: Node, topic: str, first: int) -> None:
    """So many records, all of them in the bucket and none on the disk."""
    assert at(node, "produce", topic, stdin=lines(first, RECORDS)).code == 0
    assert at(node, "topic", "seal", topic, "--wait").code == 0
    until(lambda: not any(path.stat().st_size for path in node.partition_dir(topic).glob("*.log")), "the disk is freed")


def manifests(node: Node, topic: str) -> list[Path]:
    store = Path(node.store.removeprefix("file://"))
    return [path for path in store.rglob("*.json*") if "manifests" in path.parts and topic in str(path)]


def consumed(node: Node, topic: str) -> list[bytes]:
    ran = at(node, "consume", topic, "--exit-at-end")
    assert ran.code == 0, ran.err
    return ran.out.encode().splitlines(keepends=True)


@pytest.mark.parametrize("damage", ["gone", "older"])
def test_a_manifest_that_was_lost_is_committed_again(node: Node, tmp_path: Path, damage: str) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    (manifest,) = manifests(node, "t")
    older = tmp_path / "older"
    shutil.copy(manifest, older)
    offload(node, "t", RECORDS)
    manifest.unlink()
    if damage == "older":
        shutil.copy(older, manifest)

    dry = at(node, "cold", "repair", "t")
    assert dry.code == 0, dry.err
    assert f"up to offset {2 * RECORDS}" in dry.out
    assert "Nothing was changed. Run it again with --apply" in dry.out

    done = at(node, "cold", "repair", "t", "--apply", "--json")
    assert done.code == 0, done.err
    assert done.json["partitions"][0]["commit"] > 0
    assert consumed(node, "t") == lines(0, 2 * RECORDS).splitlines(keepends=True)
    offload(node, "t", 2 * RECORDS)
    node.restart()
    assert consumed(node, "t") == lines(0, 3 * RECORDS).splitlines(keepends=True)
    again = at(node, "cold", "repair", "--cluster")
    assert (again.code, again.out) == (0, "t-0: nothing to repair\n")


def test_what_is_lost_for_good_is_named_and_nothing_changes(node: Node) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    (manifest,) = manifests(node, "t")
    (segment,) = (path for path in manifest.parents[1].rglob("*.log*") if path.is_file())
    manifest.unlink()
    kept = segment.read_bytes()
    segment.unlink()
    refused = at(node, "cold", "repair", "t", "--apply")
    assert refused.code == 1
    assert "put the object back" in refused.out
    assert not manifest.exists()
    segment.write_bytes(kept)
    assert at(node, "cold", "repair", "t", "--apply").code == 0
    assert consumed(node, "t") == lines(0, RECORDS).splitlines(keepends=True)


def test_one_topic_or_all_of_them(node: Node) -> None:
    assert at(node, "cold", "repair").code == 2
    assert at(node, "cold", "repair", "t", "--cluster").code == 2
    assert "UNKNOWN_TOPIC" in at(node, "cold", "repair", "nothing").err
