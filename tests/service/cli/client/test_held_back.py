"""A `tidelog consume` that follows a topic names the open transaction at which it stops, once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer

from service.cli.client import silence
from service.cli.client.held_back import HeldBack
from tests.service.cli.client.test_waiting import FOLLOW
from tests.service.cli.support import ROOT, tidelog
from tests.support.children import start_child
from tests.support.clients import create
from tests.support.node import Node

T = ("t", 0)


class Looks:
    """Looks for partitions that are held back; the clock moves by one silence before each look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = HeldBack(lambda: self.now)

    def __call__(self, end: int | None, high: int) -> dict[tuple[str, int], int]:
        assert not self.held.due()
        self.now += silence.SILENCE_S
        assert self.held.due()
        return dict(self.held.look({} if end is None else {T: end}, {T: high}))


def test_a_partition_is_found_at_its_second_look_and_once_for_each_offset() -> None:
    look = Looks()
    assert [look(5, 9), look(5, 9), look(5, 12), look(12, 12), look(12, 20), look(12, 20)] == [
        {},
        {T: 5},
        {},
        {},
        {},
        {T: 12},
    ]


def test_short_transactions_are_not_found() -> None:
    look = Looks()
    assert [look(5, 9), look(None, 9), look(9, 12), look(12, 12), look(12, 14), look(14, 16)] == [{}] * 6


def test_a_partition_without_a_watermark_is_not_found() -> None:
    held = HeldBack(lambda: 0.0)
    assert [dict(held.look({T: 5}, {})) for _ in range(3)] == [{}] * 3


def test_a_partition_that_the_node_did_not_explain_is_found_again() -> None:
    look = Looks()
    assert [look(5, 9), look(5, 9)] == [{}, {T: 5}]
    look.held.forget([T])
    assert [look(5, 9), look(5, 9)] == [{T: 5}, {}]


def test_a_follower_names_the_producer_and_continues_when_the_transaction_ends(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert tidelog("produce", "t", "-b", node.kafka, stdin="1\n").code == 0
        slow = Producer({"bootstrap.servers": node.kafka, "transactional.id": "slow"})
        slow.init_transactions(30)
        slow.begin_transaction()
        slow.produce("t", b"2", partition=0)
        assert slow.flush(30) == 0
        words = [sys.executable, "-c", FOLLOW, "consume", "t", "-b", node.kafka]
        reader = start_child(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert reader.stdout is not None and reader.stderr is not None
            assert reader.stdout.readline() == "1\n"
            line = reader.stderr.readline()
            assert line.startswith("tidelog: t-0 is read up to offset 1: producer ")
            assert "(transactional id slow) has a transaction open there" in line
            assert line.endswith("; `tidelog txn abort slow` aborts it now\n")
            slow.commit_transaction(30)
            assert reader.stdout.readline() == "2\n"
        finally:
            reader.kill()
            _, said = reader.communicate()
    assert said == ""
