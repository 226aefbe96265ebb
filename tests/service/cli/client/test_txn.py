"""`tidelog txn` on a node with real producers: what it lists and shows, and both ways to end a transaction."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import KafkaException, Producer

from service.cli.client import transactions
from service.cli.client.positions import parse_duration
from tests.service.cli.support import Ran, tidelog, tidelog_process
from tests.support.clients import create
from tests.support.node import Node

SECONDS = 60.0
TRANSACTION_STATE = "__transaction_state"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("transactions"), store="none") as started:
        create(started, "orders", 2, {})
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def at(node: Node, *words: str) -> Ran:
    return tidelog("txn", *words, "-b", node.kafka)


def begun(node: Node, name: str, partition: int = 0) -> Producer:
    """A producer with one record in an open transaction."""
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": name, "log_level": 0})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", "x", partition=partition)
    assert producer.flush(SECONDS) == 0
    return producer


def end_of(node: Node, partition: int) -> int:
    return int(tidelog("topic", "describe", "orders", "--json", "-b", node.kafka).json["partitions"][partition]["end"])


def ids(ran: Ran) -> list[str]:
    assert ran.code == 0, ran.err
    return [row["transactional_id"] for row in ran.json]


def test_an_open_transaction_is_listed_described_and_aborted(node: Node, name: str) -> None:
    start = end_of(node, 0)
    producer = begun(node, name)
    (listed,) = at(node, "list", "--transactional-id-pattern", f"{name[:-1]}.", "--json").json
    assert (listed["transactional_id"], listed["state"], listed["coordinator"]) == (name, "Ongoing", 1)
    found = at(node, "describe", name, "--json").json
    assert found["partitions"] == [{"topic": "orders", "partition": 0, "start_offset": start}]
    assert (found["state"], found["producer_id"], found["timeout_ms"]) == ("Ongoing", listed["producer_id"], 60_000)
    assert 0 <= found["duration_ms"] < 600_000 and found["start_ms"] > 1_700_000_000_000
    printed = at(node, "describe", name).out.splitlines()
    assert printed[0].startswith(f"{name}  Ongoing  producer {listed['producer_id']}, epoch ")
    assert printed[1].startswith("it has been open for ")
    assert [line.split() for line in printed[3:]] == [["orders", "0", str(start)]]

    assert at(node, "abort", name).out == f"aborted the transaction of {name} in 1 partition\n"
    after = at(node, "describe", name, "--json").json
    assert (after["state"] == "Ongoing", after["partitions"], after["duration_ms"]) == (False, [], None)
    assert after["timeout_ms"] == 60_000
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(SECONDS)
    assert fenced.value.args[0].name() in ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
    again = at(node, "abort", name)
    assert again.code == 1 and f"{name} has no open transaction" in again.err


def test_filters_choose_by_state_producer_age_and_name(node: Node, name: str) -> None:
    opened, done = f"{name}-open", f"{name}-done"
    producer = begun(node, opened)
    begun(node, done, 1).commit_transaction(SECONDS)
    number = {row["transactional_id"]: row["producer_id"] for row in at(node, "list", "--json").json}[done]
    assert {opened, done} <= set(ids(at(node, "list", "--json")))
    ongoing = ids(at(node, "list", "--state", "ongoing", "--json"))
    assert opened in ongoing and done not in ongoing
    assert done in ids(at(node, "list", "--state", "CompleteCommit", "--state", "PrepareCommit", "--json"))
    assert ids(at(node, "list", "--producer-id", str(number), "--json")) == [done]
    assert opened in ids(at(node, "list", "--duration", "0ms", "--json"))
    assert opened not in ids(at(node, "list", "--duration", "1h", "--json"))
    assert ids(at(node, "list", "--transactional-id-pattern", f".*{done[-20:]}", "--json")) == [done]
    row = next(line.split() for line in at(node, "list").out.splitlines() if line.startswith(done))
    assert row[:3] == [done, "1", str(number)]
    wrong = at(node, "list", "--transactional-id-pattern", "[")
    assert wrong.code == 1 and "'[' is not a regular expression, or uses syntax that tidelog lacks" in wrong.err
    producer.abort_transaction(SECONDS)


def test_producers_of_a_partition_and_their_open_transactions(node: Node, name: str) -> None:
    start = end_of(node, 1)
    producer = begun(node, name, 1)
    number = at(node, "describe", name, "--json").json["producer_id"]
    rows = at(node, "producers", "orders", "--partition", "1", "--json").json
    (row,) = (each for each in rows if each["producer_id"] == number)
    assert (row["topic"], row["partition"], row["start_offset"], row["last_sequence"]) == ("orders", 1, start, 0)
    assert {each["partition"] for each in rows} == {1}
    shown = [line.split() for line in at(node, "producers", "orders").out.splitlines()]
    assert ["orders", "1", str(number)] in [words[:3] for words in shown]
    producer.commit_transaction(SECONDS)
    rows = at(node, "producers", "orders", "--partition", "1", "--json").json
    assert [each["start_offset"] for each in rows if each["producer_id"] == number] == [None]


def test_a_transaction_with_a_coordinator_is_not_ended_in_one_partition(node: Node, name: str) -> None:
    start = end_of(node, 0)
    producer = begun(node, name)
    where = ("--topic", "orders", "--partition", "0")
    refused = at(node, "abort", *where, "--start-offset", str(start))
    assert refused.code == 1 and f"`tidelog txn abort {name}` ends it everywhere" in refused.err
    refused = at(node, "abort", *where, "--start-offset", str(start + 7))
    assert refused.code == 1 and "`tidelog txn producers orders` shows all" in refused.err
    assert at(node, "find-hanging", "--max-transaction-timeout", "0ms", "--json").json == []
    producer.commit_transaction(SECONDS)


def test_a_hanging_transaction_is_found_and_ended(tmp_path: Path) -> None:
    """The records of its coordinator are lost, so no coordinator would ever end it."""
    with Node(tmp_path, store="none") as node:
        create(node, "orders", 2, {})
        producer = begun(node, "gone")
        before = at(node, "describe", "gone", "--json").json
        node.kill()
        for directory in node.partition_dir("orders", 0).parent.glob(f"{TRANSACTION_STATE}-*"):
            shutil.rmtree(directory)
        del producer
        node.start()
        assert at(node, "find-hanging", "--json").json == []  # it is younger than 15 minutes
        scope = ("find-hanging", "--topic", "orders", "--max-transaction-timeout", "0ms")
        (hanging,) = _once_there_is_any(node, *scope, "--json")
        assert (hanging["topic"], hanging["partition"], hanging["start_offset"]) == ("orders", 0, 0)
        assert (hanging["producer_id"], hanging["producer_epoch"]) == (before["producer_id"], before["producer_epoch"])
        assert at(node, *scope, "--partition", "1", "--json").json == []
        none = at(node, "find-hanging")
        assert none.code == 0 and "within the last 15m were not checked (--max-transaction-timeout)" in none.err
        command = "tidelog txn abort --topic orders --partition 0 --start-offset 0"
        told = tidelog("topic", "describe", "orders", "-b", node.kafka).out
        assert told.endswith(f"; no coordinator knows it: `{command}` ends it if it hangs\n")
        advised = at(node, *scope).out.splitlines()[-1]
        assert advised == f"To end it: {command}"
        assert at(node, *advised.split()[5:]).out == "aborted the transaction from offset 0 on in orders-0\n"
        assert at(node, *scope, "--json").json == []
        assert at(node, "producers", "orders", "--json").json[0]["start_offset"] is None


def _once_there_is_any(node: Node, *words: str) -> list[Any]:
    end = time.monotonic() + SECONDS
    while not (found := at(node, *words).json):
        assert time.monotonic() < end
    return list(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("abort",), "name a transactional id, or a hanging transaction with --topic"),
        (("abort", "x", "--topic", "orders"), "name a transactional id, or a hanging transaction with --topic"),
        (("abort", "--topic", "orders", "--start-offset", "0"), "all of --topic, --partition and --start-offset"),
        (("abort", "nobody"), "there is no transactional id nobody; `tidelog txn list` shows all"),
        (("describe", "nobody"), "there is no transactional id nobody; `tidelog txn list` shows all"),
        (("producers", "nowhere"), "there is no topic nowhere"),
        (("producers", "orders", "--partition", "7"), "orders has no partition 7, only 0 to 1"),
        (("find-hanging", "--partition", "1"), "name it with --topic"),
        (("find-hanging", "--max-transaction-timeout", "15"), "write 90s or 1h30m"),
        (("list", "--duration", "-1h"), "write 90s or 1h30m"),
        (("list", "--state", "Open"), "write one of CompleteAbort, CompleteCommit"),
    ],
)
def test_wrong_words_are_explained(node: Node, words: tuple[str, ...], said: str) -> None:
    ran = at(node, *words)
    assert ran.code != 0 and said in " ".join(ran.err.replace("│", " ").split())


def test_the_first_question_of_a_cluster_about_transactions_is_answered(tmp_path: Path) -> None:
    with Node(tmp_path, store="none") as fresh:
        listed = tidelog_process("txn", "list", "--json", "-b", fresh.kafka)
        assert (listed.code, listed.json) == (0, [])
        ran = tidelog_process("txn", "describe", "t", "-b", fresh.kafka)
        assert ran.code == 1 and "there is no transactional id t" in ran.err


def test_a_producer_with_an_open_transaction_may_hang_in_another_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator knows only of partition 1, and ends nothing in partition 0."""
    rows = [transactions.PartitionProducer("t", number, 7, 0, None, 0, 0, 5) for number in (0, 1)]
    cluster, keys = owned(monkeypatch, rows, transactions.ONGOING, 0), [row.key for row in rows]
    assert transactions.hanging(cluster, "", keys, silent_ms=10, now_ms=11) == rows[:1]
    assert transactions.hanging(cluster, "", keys, silent_ms=11, now_ms=11) == []


def owned(
    monkeypatch: pytest.MonkeyPatch, rows: list[transactions.PartitionProducer], state: str, epoch: int
) -> transactions.Cluster:
    """A cluster whose coordinator of `copier`, with producer id 7, knows of a transaction in partition 1."""
    known = transactions.TransactionSnapshot("copier", 1, state, 7, epoch, 1000, 0, [("t", 1)])
    monkeypatch.setattr(transactions, "producers", lambda *_: rows)
    listed = transactions.TransactionRow("copier", 1, 7, state)
    monkeypatch.setattr(transactions, "list_transactions", lambda *_, **__: [listed])
    monkeypatch.setattr(transactions, "describe", lambda *_: known)
    return transactions.Cluster({}, [], {})


@pytest.mark.parametrize(("state", "epoch"), [("Ongoing", 3), ("Ongoing", 4), ("PrepareAbort", 4)])
def test_an_earlier_transaction_of_an_id_hangs_though_a_later_one_has_its_partition(
    monkeypatch: pytest.MonkeyPatch, state: str, epoch: int
) -> None:
    """A disk has lost the transaction's marker. While a transaction ends, its coordinator may already show the next
    epoch."""
    row = transactions.PartitionProducer("t", 1, 7, 3, None, 0, 0, 5)
    cluster, hangs = owned(monkeypatch, [row], state, epoch), (state, epoch) == ("Ongoing", 4)
    assert transactions.hanging(cluster, "", [row.key], silent_ms=10, now_ms=11) == [row] * hangs


def test_durations_are_read() -> None:
    assert [parse_duration(text, "--duration") for text in ("0ms", "90s", "1h30m")] == [0, 90_000, 5_400_000]
    for text in ("", "5", "1y", "-1s", "1s "):
        with pytest.raises(typer.BadParameter, match="write 90s"):
            parse_duration(text, "--duration")
