"""A bucket is restored to its state before a compaction, and the advice of the node's messages keeps the value of every key."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.service.cli.support import tidelog
from tests.service.cli.test_cold_repair import SETTINGS, at
from tests.support.clients import local_bytes, until
from tests.support.node import Node

Table = dict[str, str]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, settings={**SETTINGS, "log.cleaner.backoff.ms": 50}) as running:
        yield running


def offload(node: Node, table: Mapping[str, str]) -> Mapping[str, str]:
    """Produces the records; returns them once the bucket holds them all and the disk none."""
    lines = "".join(f"{key}:{value}\n" for key, value in table.items()).encode()
    assert at(node, "produce", "t", "-k", ":", stdin=lines).code == 0
    assert at(node, "topic", "seal", "t", "--wait").code == 0
    until(lambda: local_bytes(node, "t", 1) == 0, "the disk is freed")
    return table


def read(node: Node) -> Table:
    ran = at(node, "consume", "t", "--exit-at-end", "-k", ":")
    assert ran.code == 0, ran.err
    return {key: value for key, _, value in (line.partition(":") for line in ran.out.splitlines())}


def keys(first: int, end: int, value: str) -> Table:
    return {f"k{number}": value for number in range(first, end)}


def test_a_bucket_from_before_a_compaction_loses_no_key(node: Node, tmp_path: Path) -> None:
    assert at(node, "topic", "create", "t", "-c", "min.cleanable.dirty.ratio=0.01").code == 0
    expected = {**offload(node, keys(0, 300, "first")), **offload(node, keys(0, 150, "second"))}
    expected |= offload(node, keys(1000, 1010, "last"))
    before = tmp_path / "before"
    (topic,) = (path for path in node.store_path.glob("*/topics/t*") if path.is_dir())
    shutil.copytree(topic, before)
    assert at(node, "topic", "alter", "t", "-c", "cleanup.policy=compact").code == 0
    until(lambda: re.search("log.cleaned .*tier=bucket", node.output()) is not None, "the bucket is compacted")
    assert read(node) == expected
    node.stop()
    shutil.rmtree(topic)
    shutil.copytree(before, topic)
    node.start()
    said = at(node, "cold", "repair", "t")
    assert said.code == 0 and "--accept-loss" not in said.out, said.out
    assert "offsets [0, 450) are copied from the segments that compaction had replaced" in said.out
    assert at(node, "cold", "repair", "t", "--apply").code == 0
    assert read(node) == expected
    expected |= offload(node, keys(2000, 2010, "later"))
    node.restart()
    assert read(node) == expected
    sound = tidelog("fsck", "--store", node.store)
    assert sound.code == 0, sound.out
    assert at(node, "cold", "repair", "t").out.splitlines()[-1] == "t-0: nothing to repair"
