"""Two nodes where only one may run: on one data directory, and on copies of one directory with one bucket.

A lock prevents the first. The incarnation prevents the second: each start takes the bucket's next incarnation by
compare-and-swap, every commit carries it, and a node that finds a newer incarnation reports the fact and stops. The bucket then
holds one history.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.clients import TIERED, Load, create_topic, local_bytes, read_everything, seal, until
from tests.history.passes import History
from tests.support.live_files import live_files
from tests.support.node import Node

TOPIC = "twice"
#: Offloads happen when a test requests them, not on a timer.
BY_SEAL = {**TIERED, "tidelog.tier.max.lag.ms": str(3600 * 1000), "internal.segment.bytes": str(1 << 20)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "first") as node:
        yield node


def copy_of(node: Node, directory: Path) -> Node:
    """Another node on a copy of the directory as it is now, with the same bucket."""
    # The node writes topic.json within a second of creating the topic. After the copy's start, this write would already find a
    # newer incarnation.
    until(
        lambda: live_files(Path(node.store.removeprefix("file://")), "**/topic.json"),
        "the topic is named in the bucket",
    )
    other = Node(directory, store=node.store)
    shutil.copytree(node.data_dir, other.data_dir, copy_function=_copy_if_there)
    return other


def _copy_if_there(source: str, target: str) -> None:
    """Copies the file unless it is gone: a running node renames its temporary files."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def write(node: Node, name: str, records: int) -> list[bytes]:
    """Produces `records` records under acks=all; returns their keys, which all begin with `name`."""
    history = History()
    rng = random.Random(name)
    with Load(history, node.kafka, TOPIC, 1, idempotent=1, plain=0, rng=rng, prefix=name) as load:
        load.more(records)
        load.settle()
    return sorted(history.sends, key=lambda key: history.sends[key].number)


def served(node: Node) -> list[bytes]:
    return [seen.content.key for seen in read_everything(node.kafka, TOPIC, 1).partitions[0]]


def offload(node: Node) -> None:
    """Returns once the bucket holds all records and the local disk none."""
    seal(node, TOPIC)
    until(lambda: local_bytes(node, TOPIC) == 0, "local segments are evicted")


def says_so_and_stops(node: Node) -> None:
    assert node.wait() == 1, node.output_tail()
    assert "a copy of" in node.output_tail(5), node.output_tail()


def test_a_second_process_on_the_same_directory_is_refused(node: Node, tmp_path: Path) -> None:
    create_topic(node, TOPIC)
    second = Node(node.directory)
    second.output_path = tmp_path / "second.output"
    second.spawn()
    assert second.wait() == 1
    assert f"another process uses {node.data_dir}" in second.output()

    assert node.running
    keys = write(node, "after", 100)
    node.kill()
    with second:
        assert served(second) == keys


@pytest.mark.parametrize("original_first", [True, False])
def test_the_copy_that_runs_second_is_refused(node: Node, tmp_path: Path, original_first: bool) -> None:
    create_topic(node, TOPIC, configs=BY_SEAL)
    keys = write(node, "before", 300)
    seal(node, TOPIC)
    node.stop()
    copy = copy_of(node, tmp_path / "copy")
    runs, refused = (node, copy) if original_first else (copy, node)
    with runs:
        refused.spawn()
        says_so_and_stops(refused)
        keys += write(runs, "after", 100)
        offload(runs)
        assert served(runs) == keys


def test_once_the_copy_has_committed_the_original_cannot(node: Node, tmp_path: Path) -> None:
    create_topic(node, TOPIC, configs=BY_SEAL)
    keys = write(node, "before", 300)
    with copy_of(node, tmp_path / "copy") as copy:
        write(node, "original", 200)
        keys += write(copy, "copy", 100)
        offload(copy)
        seal(node, TOPIC, wait=False)
        says_so_and_stops(node)
        keys += write(copy, "later", 100)
        offload(copy)
        assert served(copy) == keys


def test_a_copy_keeps_its_appends_and_the_original_stops_at_its_next_offload(node: Node, tmp_path: Path) -> None:
    """The copy claims the manifest before it accepts a record, so that the original can no longer extend it."""
    create_topic(node, TOPIC, configs=BY_SEAL)
    keys = write(node, "before", 300)
    with copy_of(node, tmp_path / "copy") as copy:
        write(node, "original", 200)
        keys += write(copy, "copy", 350)
        seal(node, TOPIC, wait=False)
        says_so_and_stops(node)
        offload(copy)
        assert served(copy) == keys
        assert "log.discarded" not in copy.output()


def test_the_copy_serves_segments_that_the_original_offloaded_before(node: Node, tmp_path: Path) -> None:
    create_topic(node, TOPIC, configs=BY_SEAL)
    keys = write(node, "before", 300)
    copy = copy_of(node, tmp_path / "copy")
    keys += write(node, "original", 200)
    offload(node)
    with copy:
        keys += write(copy, "copy", 100)
        write(node, "too late", 100)
        seal(node, TOPIC, wait=False)
        says_so_and_stops(node)
        offload(copy)
        assert served(copy) == keys
