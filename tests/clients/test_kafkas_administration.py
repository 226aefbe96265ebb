"""kafka-transactions and kafka-consumer-groups on open transactions and live members, which the commands of `tools.py` do not
cover."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from tests.clients import tools
from tests.clients.test_groups import consumer, partitions, read, until
from tests.clients.test_transactions import SECONDS, found, transactional
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

COUNT, PARTITIONS = 20, 2
TRANSACTION_STATE = "__transaction_state"


def rows(java: Talker, node: Node, tool: str, *words: str) -> list[dict[str, str]]:
    """The rows of the table that the tool prints, as dicts by column."""
    arguments = ["--bootstrap-server", node.kafka, *words]
    answer = java.ask(command="tool", tool=tools.CLASSES[tool], arguments=arguments)
    assert answer["status"] == 0, answer["printed"]
    lines = [line.split() for line in answer["printed"].splitlines() if line.strip()]
    if not lines:
        return []
    head, *others = lines
    return [dict(zip(head, line, strict=False)) for line in others]


@contextmanager
def opened(node: Node, topic: str, name: str) -> Iterator[Producer]:
    """A producer whose open transaction has a record in partition 1."""
    producer = transactional(node, name)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=1)
    assert producer.flush(SECONDS) == 0
    yield producer


def test_transactions_are_listed_described_and_found_in_a_partition(node: Node, java: Talker) -> None:
    topic, name = "administered", "administered-id"
    create(node, topic, PARTITIONS, {})
    with opened(node, topic, name) as producer:
        (listed,) = (e for e in rows(java, node, "kafka-transactions", "list") if e["TransactionalId"] == name)
        assert listed["TransactionState"] == "Ongoing"
        (described,) = rows(java, node, "kafka-transactions", "describe", "--transactional-id", name)
        assert described["ProducerId"] == listed["ProducerId"]
        assert f"{topic}-1" in described.values()
        asked = ("describe-producers", "--topic", topic, "--partition", "1")
        (there,) = rows(java, node, "kafka-transactions", *asked)
        assert (there["ProducerId"], there["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "0")
        forced = ("forceTerminateTransaction", "--transactionalId", name)
        rows(java, node, "kafka-transactions", *forced)
        (there,) = rows(java, node, "kafka-transactions", *asked)
        assert there["CurrentTransactionStartOffset"] == "None"
        with pytest.raises(KafkaException) as fenced:
            producer.commit_transaction(SECONDS)
        assert fenced.value.args[0].fatal()


def test_a_hanging_transaction_is_found_and_aborted(java: Talker, tmp_path: Path) -> None:
    """The coordinator's records are lost, so nothing else would ever end the transaction."""
    with Node(tmp_path, store="none") as node:
        create(node, "t", PARTITIONS, {})
        with opened(node, "t", "gone"):
            node.kill()
            for directory in node.partition_dir("t", 0).parent.glob(f"{TRANSACTION_STATE}-*"):
                shutil.rmtree(directory)
        node.start()
        asked = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "-1000")
        (hanging,) = rows(java, node, "kafka-transactions", *asked)
        assert (hanging["Topic"], hanging["Partition"], hanging["StartOffset"]) == ("t", "1", "0")
        where = ("--topic", "t", "--partition", "1", "--start-offset", "0")
        rows(java, node, "kafka-transactions", "abort", *where)
        assert rows(java, node, "kafka-transactions", *asked) == []
        producer = Producer({"bootstrap.servers": node.kafka})
        producer.produce("t", "after", partition=1)
        assert producer.flush(SECONDS) == 0
        assert found(node, "t", 1) == ["after"]


def test_a_group_is_described_with_its_member(node: Node, java: Talker) -> None:
    topic = group = "administered-group"
    create(node, topic, PARTITIONS, {})
    produce(node, topic, COUNT)
    with consumer(node, topic, group, **{"client.id": "me"}) as member:
        read(member, COUNT)
        until(lambda: member.poll(0.1), lambda: len(partitions(member)) == PARTITIONS)
        member.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        tool, asked = "kafka-consumer-groups", ("--describe", "--group", group)
        described = {each["PARTITION"]: each for each in rows(java, node, tool, *asked)}
        assert {each["CLIENT-ID"] for each in described.values()} == {"me"}
        assert int(described["0"]["LAG"]) == int(described["0"]["LOG-END-OFFSET"]) - 1
        assert described["1"]["CURRENT-OFFSET"] == "-"
        (member_row,) = rows(java, node, tool, *asked, "--members", "--verbose")
        assert (member_row["CLIENT-ID"], member_row["#PARTITIONS"]) == ("me", str(PARTITIONS))
        (state,) = rows(java, node, tool, *asked, "--state")
        assert (state["STATE"], state["#MEMBERS"]) == ("Stable", "1")
