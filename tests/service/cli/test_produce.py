"""`tidelog produce` at a node that takes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli import produce
from tests.service.cli.support import tidelog
from tests.support.clients import create, until
from tests.support.node import Node


def test_a_node_that_acknowledges_nothing_is_said_while_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "SILENCE_S", 0.5)
    monkeypatch.setattr(produce, "DELIVERY_TIMEOUT_MS", 4_000)
    # Any disk is fuller than that: the node refuses records, retriably.
    full = {"tidelog.disk.watermark.slow": "0.0001", "tidelog.disk.watermark.refuse": "0.0002"}
    with Node(tmp_path, settings=full) as node:
        create(node, "t", 1, {})
        until(lambda: "disk.watermark produce=refused" in node.output(), "the disk was looked at")
        ran = tidelog("produce", "t", "-b", node.kafka, stdin="one\ntwo\n")
    assert ran.code == 1
    waits, *_, failed = ran.err.splitlines()
    assert waits.startswith("tidelog: the node has acknowledged nothing for 0.5 s; it is asked for up to 4 s")
    assert "0 records written to t, then one was refused" in failed
    assert ran.err.count("acknowledged nothing") == 1
