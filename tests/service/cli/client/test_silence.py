"""`tidelog produce` to a node that accepts nothing, and `tidelog consume` from one that returns nothing: both report it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from service.cli.client import following, produce, silence
from service.cli.client.positions import parse_position
from tests.faults.clients import seal
from tests.service.cli.support import tidelog
from tests.support.clients import TIERED, create, until
from tests.support.clients import produce as send
from tests.support.node import Node


def test_a_node_that_acknowledges_nothing_is_reported_while_retrying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.5)
    monkeypatch.setattr(produce, "DELIVERY_TIMEOUT_MS", 4_000)
    # Every disk is fuller than these watermarks, so the node refuses records with a retriable error.
    full = {"tidelog.disk.watermark.slow": "0.0001", "tidelog.disk.watermark.refuse": "0.0002"}
    with Node(tmp_path, settings=full) as node:
        create(node, "t", 1, {})
        until(lambda: "disk.watermark produce=refused" in node.output(), "the disk was checked")
        ran = tidelog("produce", "t", "-b", node.kafka, stdin="one\ntwo\n")
    assert ran.code == 1
    waits, *_, failed = ran.err.splitlines()
    assert waits.startswith("tidelog: the node has acknowledged nothing for 0.5 s; retrying for up to 4 s")
    assert "0 records written to t, then one was refused" in failed
    assert ran.err.count("acknowledged nothing") == 1


class Said(Exception):
    """Carries the line that `consume` reports, and stops `consume`, which would otherwise keep fetching."""


def test_a_wait_for_missing_records_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(line: str) -> None:
        raise Said(line)

    monkeypatch.setattr(silence, "SILENCE_S", 0.5)
    monkeypatch.setattr(following, "report", report)
    with Node(tmp_path) as node:
        create(node, "t", 1, TIERED)
        send(node, "t", 10)
        seal(node, "t")
        until(lambda: not (node.data_dir / "t-0" / f"{0:020d}.log").exists(), "its records left the disk")
        node.stop()
        node.store += "-of-another"  # the store answers, and holds none of the objects
        node.start()
        with pytest.raises(Said, match=r"no records for [0-9.]+ s before the end of t-0"):
            tidelog("consume", "t", "--exit-at-end", "-b", node.kafka)


class _LateAssignment:
    """A consumer whose group assigns its partition after the first poll, `SILENCE_S` after the start. The second poll finds no
    record yet, and the third ends the follower."""

    def __init__(self, _: dict[str, Any]) -> None:
        self.now = 0.0
        self.polls = 0
        self.follower: following.GroupFollower | None = None
        self.on_assign: Callable[[Any, list[TopicPartition]], None] | None = None

    def subscribe(self, _: list[str], on_assign: Callable[[Any, list[TopicPartition]], None]) -> None:
        self.on_assign = on_assign

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("t", 0)] if self.polls else []

    def consume(self, *_: object) -> list[object]:
        self.polls += 1
        if self.polls == 1 and self.on_assign is not None:
            self.now = silence.SILENCE_S
            self.on_assign(self, [TopicPartition("t", 0)])
        elif self.polls == 3 and self.follower is not None:
            self.follower.stop()
        return []


def test_the_time_until_a_group_assigns_partitions_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _LateAssignment({})
    said: list[str] = []
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda _: made)
    monkeypatch.setattr(following, "topic_partitions", lambda *_: [("t", 0)])
    monkeypatch.setattr(following, "why_nothing_comes", lambda *_: "no reason")
    monkeypatch.setattr(following, "report", said.append)
    monkeypatch.setattr(silence, "monotonic", lambda: made.now)
    member = following.GroupSubscription("g", ["t"], parse_position("beginning", 0, "--from"))
    made.follower = following.GroupFollower("127.0.0.1:9", lambda _: b"", None, False, member=member)
    made.follower.begin()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    made.follower.run()
    assert (made.polls, said) == (3, [])
