"""A disk has lost the marker of a transaction whose outcome no coordinator knows any longer. The transaction stays open, and
tools name it. By then the producer of its transactional id has a newer epoch; it continues once an operator has ended the
transaction."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from grpc_api.sdk.blocking import BlockingClient
from storage_tiers.records.batch import headers
from tests.clients.test_groups import until
from tests.clients.test_kafkas_administration import rows
from tests.clients.test_transactions import found, transact, transactional
from tests.service.cli.support import tidelog
from tests.support.clients import create
from tests.support.node import Node
from tests.support.talker import Talker

WHERE = ("--topic", "t", "--partition", "0", "--start-offset", "0")


def cut_off(node: Node) -> None:
    """Kills the node, cuts partition 0 after the first transaction's record, and starts the node."""
    node.kill()
    directory = node.partition_dir("t", 0)
    log = directory / "00000000000000000000.log"
    content = log.read_bytes()
    (position, first), (_, marker) = headers(content)
    assert first.transactional and not first.control and marker.control
    log.write_bytes(content[position : position + first.size])
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    node.start()


def is_named(node: Node) -> None:
    """Asserts that every command that shows open transactions names it, with the command that ends it."""
    (row,) = tidelog("txn", "find-hanging", "--max-transaction-timeout", "0ms", "--json", "-b", node.kafka).json
    assert (row["topic"], row["partition"], row["start_offset"]) == ("t", 0, 0)
    (listed,) = tidelog("txn", "list", "--producer-id", str(row["producer_id"]), "--json", "-b", node.kafka).json
    assert (listed["transactional_id"], listed["state"]) == ("x", "Ongoing")
    command = f"tidelog txn abort {' '.join(WHERE)}"
    assert f"`{command}` ends it if it hangs" in tidelog("topic", "describe", "t", "-b", node.kafka).out


@pytest.mark.parametrize("tool", ["tidelog", "kafka-transactions"])
def test_a_producer_of_version_2_continues_once_its_lost_transaction_is_aborted(
    java: Talker, tmp_path: Path, tool: str
) -> None:
    with Node(tmp_path, store="none") as node:
        create(node, "t", 2, {})
        with (
            BlockingClient.connect(node.grpc) as client,
            client.transactional_producer("x") as producer,
            ThreadPoolExecutor(1) as threads,
        ):
            for number in (0, 1):
                with producer.transaction() as transaction:
                    transaction.send("t", b"before %d" % number, partition=number).result()
            cut_off(node)
            with producer.transaction() as transaction:
                transaction.send("t", b"after", partition=1).result()
                waiting = threads.submit(transaction.send("t", b"after", partition=0).result)
                is_named(node)
                asked = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "-1000")
                (hanging,) = rows(java, node, "kafka-transactions", *asked)
                assert (hanging["Topic"], hanging["Partition"], hanging["StartOffset"]) == ("t", "0", "0")
                assert not waiting.done()
                if tool == "tidelog":
                    assert tidelog("txn", "abort", *WHERE, "-b", node.kafka).code == 0
                else:
                    rows(java, node, tool, "abort", *WHERE)
                waiting.result()
            assert rows(java, node, "kafka-transactions", *asked) == []
        assert found(node, "t", 3) == ["after", "after", "before 1"]


def test_a_producer_of_version_1_continues_once_its_lost_transaction_is_aborted(tmp_path: Path) -> None:
    """The later producer of the id has a newer epoch. Its client has added the partition to its transaction, so that Kafka's
    own tool mistakes the earlier transaction for the later one."""
    with Node(tmp_path, store="none") as node:
        create(node, "t", 2, {})
        transact(transactional(node, "x"), "t", "before")
        producer = transactional(node, "x")
        cut_off(node)
        producer.begin_transaction()
        sent: Future[object] = Future()
        producer.produce("t", "after", partition=1)
        producer.produce("t", "after", partition=0, on_delivery=lambda error, _: sent.set_result(error))
        until(lambda: producer.poll(0.1), lambda: is_open(node))
        is_named(node)
        assert not sent.done()
        assert tidelog("txn", "abort", *WHERE, "-b", node.kafka).code == 0
        producer.commit_transaction(60)
        assert sent.result() is None
        assert found(node, "t", 2) == ["after", "after"]


def is_open(node: Node) -> bool:
    """Whether the later transaction has both partitions."""
    return len(tidelog("txn", "describe", "x", "--json", "-b", node.kafka).json["partitions"]) == 2
