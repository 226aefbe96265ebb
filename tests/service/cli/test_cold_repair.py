"""`tidelog cold repair` as an operator runs it, through a node whose bucket lost objects."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.cli.support import Ran, tidelog
from tests.support.clients import local_bytes, until
from tests.support.node import Node

RECORDS = 300
#: No closed segment stays on the disk.
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
    """Produces `RECORDS` records; returns once the bucket holds them all and the disk none."""
    assert at(node, "produce", topic, stdin=lines(first, RECORDS)).code == 0
    assert at(node, "topic", "seal", topic, "--wait").code == 0
    until(lambda: local_bytes(node, topic, 1) == 0, "the disk is freed")


def manifests(node: Node, topic: str) -> list[Path]:
    store = Path(node.store.removeprefix("file://"))
    return [path for path in store.rglob("*.json*") if "manifests" in path.parts and topic in str(path)]


def segments(node: Node, topic: str) -> list[Path]:
    store = Path(node.store.removeprefix("file://"))
    return [path for path in store.rglob("*.log*") if path.is_file() and topic in path.parts]


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
    file, partition = done.json["partitions"]
    assert (file["partition"], file["summary"]) == (-1, "")
    assert partition["commit"] > 0
    assert consumed(node, "t") == lines(0, 2 * RECORDS).splitlines(keepends=True)
    offload(node, "t", 2 * RECORDS)
    node.restart()
    assert consumed(node, "t") == lines(0, 3 * RECORDS).splitlines(keepends=True)
    again = at(node, "cold", "repair", "--cluster")
    assert again.code == 0
    own = [line for line in again.out.splitlines() if "__consumer_offsets" not in line]
    assert own == [
        "cluster.json: nothing to repair",
        "topic.json of t: nothing to repair",
        "t-0: nothing to repair",
    ]


def test_lost_segments_are_named_and_nothing_changes(node: Node) -> None:
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


def test_lost_segments_are_accepted_by_name(node: Node) -> None:
    """The operator follows the message: the repair accepts the range that the message names, and no larger one."""
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    (first,) = segments(node, "t")
    offload(node, "t", RECORDS)
    (manifest,) = manifests(node, "t")
    manifest.unlink()
    first.unlink()
    refused = at(node, "cold", "repair", "t", "--apply")
    assert refused.code == 1 and f"offsets [0, {RECORDS})" in refused.out
    (named,) = re.findall(r"--accept-loss (\S+)", refused.out)
    assert at(node, "cold", "repair", "t", "--apply", "--accept-loss", f"0:0-{2 * RECORDS}").code == 1
    assert not manifest.exists()
    dry = at(node, "cold", "repair", "t", "--accept-loss", named)
    assert (dry.code, manifest.exists()) == (0, False)
    assert f"offsets [0, {RECORDS}) are given up" in dry.out
    assert at(node, "cold", "repair", "t", "--apply", "--accept-loss", named).code == 0
    assert consumed(node, "t") == lines(RECORDS, RECORDS).splitlines(keepends=True)
    offload(node, "t", 2 * RECORDS)
    node.restart()
    assert consumed(node, "t") == lines(RECORDS, 2 * RECORDS).splitlines(keepends=True)
    sound = tidelog("fsck", "--store", node.store)
    assert sound.code == 0, sound.out


def test_a_healthy_cluster_has_nothing_to_repair(node: Node) -> None:
    """This includes partitions without any offload, and topics that are not tiered."""
    for words in (["empty"], ["local", "-c", "remote.storage.enable=false"], ["full"]):
        assert at(node, "topic", "create", *words).code == 0
    assert at(node, "produce", "local", stdin=lines(0, 3)).code == 0
    assert at(node, "produce", "empty", stdin=lines(0, 3)).code == 0
    offload(node, "full", 0)
    for _ in range(2):
        ran = at(node, "cold", "repair", "--cluster", "--apply")
        assert (ran.code, ran.err) == (0, "")
        assert {line.partition(": ")[2] for line in ran.out.splitlines()} == {"nothing to repair"}
        node.restart()


def test_missing_objects_of_a_sound_manifest_are_reported(node: Node) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    (first,) = segments(node, "t")
    offload(node, "t", RECORDS)
    kept = first.read_bytes()
    first.unlink()
    for apply in ([], ["--apply"]):
        ran = at(node, "cold", "repair", "t", *apply)
        assert ran.code == 1
        assert first.name in ran.out and f"offsets [0, {RECORDS})" in ran.out and "put the object back" in ran.out
    first.write_bytes(kept)
    again = at(node, "cold", "repair", "t")
    assert (again.code, again.out.splitlines()[-1]) == (0, "t-0: nothing to repair")
    first.unlink()
    (named,) = re.findall(r"--accept-loss (\S+)", at(node, "cold", "repair", "t").out)
    assert at(node, "cold", "repair", "t", "--apply", "--accept-loss", named).code == 0
    assert consumed(node, "t") == lines(RECORDS, RECORDS).splitlines(keepends=True)
    offload(node, "t", 2 * RECORDS)
    node.restart()
    assert consumed(node, "t") == lines(RECORDS, 2 * RECORDS).splitlines(keepends=True)
    assert at(node, "cold", "repair", "--cluster").code == 0


def test_a_store_that_holds_nothing_of_the_cluster_is_not_written_to(node: Node, tmp_path: Path) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    right, wrong = Path(node.store.removeprefix("file://")), tmp_path / "wrong"
    (cluster_id,) = (path.parent.name for path in right.glob("*/cluster.json"))
    wrong.mkdir()
    node.stop()
    right.rename(tmp_path / "kept")
    wrong.rename(right)
    node.start()
    until(lambda: "went backwards" in json.loads(node.get("/readyz")[1])["store"], "the damage is noticed")
    for words in (["t"], ["--cluster"], ["t", "--apply"], ["--cluster", "--apply"]):
        ran = at(node, "cold", "repair", *words)
        assert ran.code == 1
        assert f"the store holds nothing of cluster {cluster_id}" in ran.out.splitlines()[0]
        assert "--accept-loss" not in ran.out and "Run it again with --apply" not in ran.out
    node.stop()
    stopped = ("--data-dir", str(node.data_dir), "--store", node.store)
    for words in (["t"], ["--cluster"], ["--cluster", "--apply"]):
        ran = tidelog("cold", "repair", *words, *stopped)
        assert ran.code == 1 and "holds nothing of cluster" in ran.out.splitlines()[0], ran.err
    assert not [path for path in right.rglob("*") if path.is_file() and "%locks" not in path.parts]
    right.rename(tmp_path / "wrong again")
    (tmp_path / "kept").rename(right)
    node.start()
    assert at(node, "cold", "repair", "--cluster").code == 0
    assert consumed(node, "t") == lines(0, RECORDS).splitlines(keepends=True)


def test_a_stopped_nodes_cluster_is_looked_at_without_a_change(node: Node) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    node.stop()
    ran = tidelog("cold", "repair", "--cluster", "--data-dir", node.data_dir, "--store", node.store)
    assert ran.code == 0, ran.err
    assert {line.partition(": ")[2] for line in ran.out.splitlines()} == {"nothing to repair"}


@pytest.mark.parametrize("loss", ["0-10", "0:10", "0:20-10", "0:5-5", "x:1-2"])
def test_a_loss_that_names_no_offsets_is_refused(loss: str) -> None:
    assert tidelog("cold", "repair", "t", "--accept-loss", loss).code == 2


def test_a_cluster_file_is_written_again(node: Node) -> None:
    (file,) = Path(node.store.removeprefix("file://")).glob("*/cluster.json")
    kept = file.read_bytes()
    assert at(node, "topic", "create", "before").code == 0
    offload(node, "before", 0)
    file.unlink()
    node.restart()
    until(lambda: "went backwards" in json.loads(node.get("/readyz")[1])["store"], "the damage is noticed")
    dry = at(node, "cold", "repair", "--cluster")
    assert dry.code == 0 and "cluster.json is gone" in dry.out and not file.exists()
    done = at(node, "cold", "repair", "--cluster", "--apply")
    assert done.code == 0 and "done: incarnation" in done.out
    until(lambda: json.loads(node.get("/readyz")[1])["store"] == "ok", "the node continues")
    assert file.exists() and file.read_bytes() != kept
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)


def test_a_stopped_node_is_repaired_by_its_directory(node: Node) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    (manifest,) = manifests(node, "t")
    (file,) = Path(node.store.removeprefix("file://")).glob("*/cluster.json")
    before = json.loads(file.read_bytes())["incarnation"]
    stopped = ("--data-dir", str(node.data_dir), "--store", node.store)
    busy = tidelog("cold", "repair", "t", *stopped)
    assert busy.code == 1 and "another process uses" in busy.err
    node.stop()
    manifest.unlink()
    dry = tidelog("cold", "repair", "t", *stopped)
    assert dry.code == 0 and f"up to offset {RECORDS}" in dry.out, dry.err
    assert not manifest.exists() and json.loads(file.read_bytes())["incarnation"] == before
    done = tidelog("cold", "repair", "t", "--apply", *stopped)
    assert done.code == 0 and "done: commit" in done.out, done.err
    assert json.loads(file.read_bytes())["incarnation"] == before + 1
    assert json.loads(manifest.read_bytes())["incarnation"] == before + 1
    file.unlink()
    assert tidelog("cold", "repair", "--cluster", "--apply", *stopped).code == 0
    assert json.loads(file.read_bytes())["incarnation"] > before + 1
    node.start()
    assert consumed(node, "t") == lines(0, RECORDS).splitlines(keepends=True)
    offload(node, "t", RECORDS)


@pytest.mark.parametrize(
    ("words", "why"),
    [(["typo"], "has no topic typo"), (["t", "--accept-loss", "9:0-10"], "--accept-loss names partition 9")],
)
def test_a_partition_absent_on_a_stopped_node_is_refused_before_any_write(
    node: Node, words: list[str], why: str
) -> None:
    assert at(node, "topic", "create", "t").code == 0
    offload(node, "t", 0)
    node.stop()
    store = Path(node.store.removeprefix("file://"))
    before = {path: path.read_bytes() for path in store.rglob("*.json")}
    refused = tidelog("cold", "repair", *words, "--apply", "--data-dir", node.data_dir, "--store", node.store)
    assert refused.code == 1 and why in refused.err
    assert {path: path.read_bytes() for path in store.rglob("*.json")} == before


def test_a_directory_of_no_node_is_refused(tmp_path: Path) -> None:
    refused = tidelog("cold", "repair", "t", "--data-dir", tmp_path / "none", "--store", tmp_path / "store")
    assert refused.code == 1 and "not a node's data directory" in refused.err
    assert not (tmp_path / "none").exists()
    assert tidelog("cold", "repair", "t", "--data-dir", tmp_path).code == 2


def test_one_topic_or_all_of_them_must_be_named(node: Node) -> None:
    assert at(node, "cold", "repair").code == 2
    assert at(node, "cold", "repair", "t", "--cluster").code == 2
    assert at(node, "cold", "repair", "--cluster", "--accept-loss", "0:1-2").code == 2
    assert "there is no topic nothing" in at(node, "cold", "repair", "nothing").err
