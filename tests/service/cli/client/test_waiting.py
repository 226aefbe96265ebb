"""A command that waits for the object store reports on standard error that it waits, and why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from grpc_api.sdk.blocking import BlockingClient
from service.cli.client import silence
from service.cli.client.waiting import ASK_THE_LOG, explain_readyz
from storage_tiers.errors import RequestTimedOut
from tests.faults.clients import seal
from tests.service.cli.support import ROOT, tidelog
from tests.support.children import start_child
from tests.support.clients import TIERED, create, until
from tests.support.clients import produce as send
from tests.support.node import Node

SOUND = {"store": "ok", "holding": "", "store_behind": {}, "refusing_partitions": [], "recovering_partitions": []}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ASK_THE_LOG),
        ({"store": "none"}, ASK_THE_LOG),
        ({"store": "cannot connect"}, "the node is waiting for the object store, and retries: cannot connect"),
        (
            {"store_behind": {"t-0": "key missing"}},
            "the object store shows less of t-0 than the node has seen: key missing",
        ),
        ({"store_behind": {"u-0": "key missing"}}, ASK_THE_LOG),
        ({"holding": "the directory was moved"}, "the node refuses writes at present: the directory was moved"),
        ({"refusing_partitions": ["t-1"]}, "t-1 cannot be written or opened because of an error of the node's disk"),
        ({"recovering_partitions": ["t-0", "t-1"]}, "t-0 is recovering: it waits for the object store"),
    ],
)
def test_the_nodes_own_reason_is_printed(changed: dict[str, object], said: str) -> None:
    assert explain_readyz(SOUND | changed, ["t-0", "t-1"]) == said


def take_away(directory: Path) -> None:
    """Replaces a directory store with a file, so that the store answers no request."""
    (directory / "store").rename(directory / "aside")
    (directory / "store").write_text("no directory")


def bring_back(directory: Path) -> None:
    (directory / "store").unlink()
    (directory / "aside").rename(directory / "store")


def test_seal_reports_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 1.0)
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert tidelog("produce", "t", "-b", node.kafka, stdin="1\n2\n3\n").code == 0
        until(lambda: "store.opened" in node.output(), "the store was opened")
        take_away(tmp_path)
        ran = tidelog("topic", "seal", "t", "--wait", "--timeout", "3", "-b", node.kafka)
    assert ran.code == 1
    waits, failed = ran.err.splitlines()
    assert waits.startswith("tidelog: t is not in the bucket after 1 s; still waiting: ")
    assert "the node is waiting for the object store, and retries: " in waits
    assert failed.startswith("tidelog: cannot seal t through ")


def test_seal_names_the_open_transaction_that_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "SILENCE_S", 0.5)
    with Node(tmp_path) as node, BlockingClient.connect(node.grpc) as client:
        create(node, "t", 1, {})
        producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "slow"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"in the transaction", partition=0)
        assert producer.flush(30) == 0
        ran = tidelog("topic", "seal", "t", "--wait", "--timeout", "2", "-b", node.kafka)
        with pytest.raises(RequestTimedOut, match=r"producer \d+ has a transaction open since offset 0 of t-0"):
            client.seal("t", timeout_s=0.2)
        producer.commit_transaction(30)
        assert tidelog("topic", "seal", "t", "--wait", "-b", node.kafka).code == 0
    assert ran.code == 1
    waits, failed = ran.err.splitlines()
    assert "(transactional id slow) has a transaction open since offset 0 of t-0" in waits
    assert waits.endswith("; `tidelog txn abort slow` aborts it now")
    assert "has a transaction open since offset 0 of t-0" in failed


def test_a_quick_seal_prints_nothing(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert tidelog("produce", "t", "-b", node.kafka, stdin="1\n").code == 0
        ran = tidelog("topic", "seal", "t", "--wait", "-b", node.kafka)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("flag", ["--exit-at-end", None], ids=["to the end", "following"])
def test_consume_reports_that_it_waits_for_the_store_and_why(tmp_path: Path, flag: str | None) -> None:
    """Only the bucket holds the topic's records, and the store does not answer."""
    with Node(tmp_path) as node:
        create(node, "t", 1, TIERED)
        send(node, "t", 10)
        seal(node, "t")
        until(lambda: not (node.data_dir / "t-0" / f"{0:020d}.log").exists(), "its records left the disk")
        node.stop()
        take_away(tmp_path)
        node.start()
        words = ["consume", "t", "-b", node.kafka, *([] if flag is None else [flag])]
        reader = start_child(
            [sys.executable, "-m", "service.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert reader.stderr is not None and reader.stdout is not None
            line = reader.stderr.readline()
            assert line.startswith("tidelog: no records for 3 s before the end of t-0: ")
            assert "the node is waiting for the object store, and retries: " in line
            bring_back(tmp_path)
            assert reader.stdout.readline().startswith("value-0-"), "the command continues without help"
        finally:
            reader.kill()
            reader.communicate()


def test_a_follower_at_the_end_has_nothing_to_say(tmp_path: Path) -> None:
    """Waiting for producers is no fault."""
    with Node(tmp_path) as node:
        create(node, "t", 1, {})
        assert tidelog("produce", "t", "-b", node.kafka, stdin="1\n").code == 0
        words = [sys.executable, "-c", FOLLOW, "consume", "t", "-b", node.kafka]
        reader = start_child(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "1\n"
            assert tidelog("consume", "t", "--exit-at-end", "-b", node.kafka).code == 0
            assert tidelog("produce", "t", "-b", node.kafka, stdin="2\n").code == 0
            assert reader.stdout.readline() == "2\n"
        finally:
            reader.kill()
            _, said = reader.communicate()
    assert said == ""


#: The command, with a short silence before it reports.
FOLLOW = "from service.cli.client import silence; silence.SILENCE_S = 1.5; from service.cli.main import app; app()"
