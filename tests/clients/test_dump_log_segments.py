"""Kafka's own DumpLogSegments reads what a node leaves on disk: logs, indexes, producer snapshots, coordinators' records."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from storage_tiers.compaction.clean_point import read_clean_point
from tests.support.clients import create, until
from tests.support.node import Node
from tests.support.talker import Talker

RECORDS = 3000


@pytest.fixture(scope="module")
def partition_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of several segments, written by an idempotent producer; its node has stopped."""
    with Node(tmp_path_factory.mktemp("dump")) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        configs = {"internal.segment.bytes": "20000", "remote.storage.enable": "false", "index.interval.bytes": "4096"}
        admin.create_topics([NewTopic("dumped", 1, 1, config=configs)])["dumped"].result(30)
        producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "batch.size": 4096,
                "linger.ms": 1,
            }
        )
        for i in range(RECORDS):
            producer.produce("dumped", key=b"%d" % i, value=b"%08d" % i * 20, timestamp=1_700_000_000_000 + i)
            producer.poll(0)
        assert producer.flush(60) == 0
        assert node.stop() == 0
        return node.partition_dir("dumped")


def dumped(java: Talker, *arguments: str) -> str:
    answer = java.ask(command="tool", tool="kafka.tools.DumpLogSegments", arguments=arguments)
    assert answer["status"] == 0, answer["printed"]
    return str(answer["printed"])


def files(directory: Path, suffix: str) -> str:
    found = sorted(directory.glob(f"*{suffix}"))
    assert found, f"no {suffix} in {directory}"
    return ",".join(map(str, found))


def test_every_record_of_every_segment_is_read(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--deep-iteration", "--print-data-log", "--files", files(partition_dir, ".log"))
    assert len(list(partition_dir.glob("*.log"))) > 2
    offsets = [int(n) for n in re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert "isvalid: false" not in printed
    payloads = re.findall(r"payload: (\d+)", printed)
    assert payloads == [f"{i:08d}" * 20 for i in range(RECORDS)]


def test_offset_indexes_pass_the_tools_sanity_check(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--index-sanity-check", "--files", files(partition_dir, ".index"))
    assert printed.count("passed sanity check") == len(list(partition_dir.glob("*.index")))
    verified = dumped(java, "--verify-index-only", "--files", files(partition_dir, ".index"))
    assert "Mismatches" not in verified


def test_time_indexes_agree_with_the_log(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--verify-index-only", "--files", files(partition_dir, ".timeindex"))
    assert "Found timestamp mismatch" not in printed
    assert "Found out of order timestamp" not in printed


def test_producer_snapshots_name_the_producer(partition_dir: Path, java: Talker) -> None:
    printed = dumped(java, "--files", files(partition_dir, ".snapshot"))
    assert re.search(r"producerId: 0 producerEpoch: 0 .*lastSequence: \d+", printed)


# --- coordinators, transactions, compacted segments -------------------------------------------------------------------

OFFSETS, DECISIONS, WORK, TABLE = "__consumer_offsets", "__transaction_state", "work", "table"
#: Each commit has this much metadata, so that the offsets topic has a segment that is closed, and can be compacted.
METADATA = "m" * 4000
COMMITS = 400
SEGMENT_BYTES = 1 << 20
SMALL = {"internal.segment.bytes": "4000", "remote.storage.enable": "false", "index.interval.bytes": "500"}
#: Transactions: their values, and whether they commit.
TRANSACTIONS = (("a", True), ("b", False), ("c", True), ("d", False), ("e", True))
#: The table's records and keys.
ROWS, KEYS = 300, 10
#: Numbers of Kafka's TransactionState: empty, ongoing, and the two states of each outcome.
EMPTY, ONGOING, COMMITTED, ABORTED = 0, 1, (2, 4), (3, 5)
SECONDS = 60.0


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node that has stopped after groups, transactions and the log cleaner have done their work."""
    settings: dict[str, str | int | bool] = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.segment.bytes": SEGMENT_BYTES,
        "transaction.state.log.num.partitions": 1,
        "log.cleaner.backoff.ms": 50,
        "log.cleaner.min.cleanable.ratio": "0.01",
    }
    with Node(tmp_path_factory.mktemp("worked"), settings=settings) as node:
        create(node, WORK, 1, SMALL)
        create(node, TABLE, 1, {**SMALL, "cleanup.policy": "compact"})
        transact(node)
        join_and_commit(node)
        fill_table(node)
        for topic in (OFFSETS, TABLE):
            until(partial(is_compacted, node, topic), f"{topic} is compacted", seconds=SECONDS)
        assert node.stop() == 0
        return node


def is_compacted(node: Node, topic: str) -> bool:
    """Whether the log is clean up to its last segment. Sizes do not show it, because cleaned segments are merged into whole
    ones."""
    directory = node.partition_dir(topic)
    point = read_clean_point(str(directory))
    *closed, last = sorted(int(path.stem) for path in directory.glob("*.log"))
    return bool(closed) and point is not None and point.offset == last


def transact(node: Node) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "pipeline"})
    producer.init_transactions(SECONDS)
    for value, commits in TRANSACTIONS:
        producer.begin_transaction()
        producer.produce(WORK, value * 3000)
        producer.flush(SECONDS)
        if commits:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)


def join_and_commit(node: Node) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "g",
            "client.id": "app",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([WORK])
    try:
        until(lambda: consumer.poll(0.1) is not None, "it reads the partition", seconds=SECONDS)
        for number in range(COMMITS):
            consumer.commit(offsets=[TopicPartition(WORK, 0, number, METADATA)], asynchronous=False)
        producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "copier"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        offsets = [TopicPartition(WORK, 0, COMMITS)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS)
        producer.commit_transaction(SECONDS)
    finally:
        consumer.close()


def is_aborted(number: int) -> bool:
    """Whether a record of the table was aborted; a transaction has five records."""
    return number // 5 % 3 == 1


def fill_table(node: Node) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "table"})
    producer.init_transactions(SECONDS)
    for first in range(0, ROWS, 5):
        producer.begin_transaction()
        for number in range(first, first + 5):
            producer.produce(TABLE, key=f"k{number % KEYS}", value=f"v{number}")
        producer.flush(SECONDS)
        if is_aborted(first):
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)


def decoded(java: Talker, node: Node, topic: str, decoder: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values of a coordinator's records in order, None for tombstones."""
    printed = dumped(java, "--deep-iteration", decoder, "--files", files(node.partition_dir(topic), ".log"))
    assert "isvalid: false" not in printed
    keyed = re.findall(r" key: (.*) payload: (.*)$", printed, re.MULTILINE)
    markers = len(re.findall(r" endTxnMarker: ", printed))
    assert len(keyed) + markers == len(re.findall(r"^\| offset: ", printed, re.MULTILINE))
    return [(json.loads(key), None if value == "<DELETE>" else json.loads(value)) for key, value in keyed]


def test_offsets_and_groups_are_decoded(worked: Node, java: Talker) -> None:
    found = decoded(java, worked, OFFSETS, "--offsets-decoder")
    offset = {"type": "1", "data": {"group": "g", "topic": WORK, "partition": 0}}
    group = {"type": "2", "data": {"group": "g"}}
    assert {json.dumps(key) for key, _ in found} == {json.dumps(offset), json.dumps(group)}
    commits = [value["data"] for key, value in found if key == offset and value is not None]
    numbers = [each["offset"] for each in commits]
    assert numbers == list(range(numbers[0], COMMITS + 1)), "those below are compacted away"
    assert 0 < numbers[0] < COMMITS
    assert all(each["metadata"].startswith(METADATA) for each in commits[:-1])
    (joined, left) = (value["data"] for key, value in found if key == group and value is not None)
    (member,) = joined["members"]
    assert (joined["protocolType"], joined["generation"], member["clientId"]) == ("consumer", 1, "app")
    assert member["subscription"]["topics"] == [WORK]
    assert member["assignment"]["assignedPartitions"] == [{"topic": WORK, "partitions": [0]}]
    assert (left["generation"], left["members"]) == (2, [])


def test_decisions_on_transactions_are_decoded(worked: Node, java: Talker) -> None:
    found = decoded(java, worked, DECISIONS, "--transaction-log-decoder")
    states = [
        value["data"]["transactionStatus"]
        for key, value in found
        if key == {"type": "0", "data": {"transactionalId": "pipeline"}} and value is not None
    ]
    ends = [[ONGOING, *(COMMITTED if commits else ABORTED)] for _, commits in TRANSACTIONS]
    assert states == [EMPTY, *(state for each in ends for state in each)]
    topics = {
        row["topic"]
        for key, value in found
        if value is not None and value["data"]["transactionPartitions"]
        for row in value["data"]["transactionPartitions"]
        if key["data"]["transactionalId"] == "copier"
    }
    assert topics == {OFFSETS}


def test_transaction_indexes_name_the_aborted_transactions(worked: Node, java: Talker) -> None:
    printed = dumped(java, "--files", files(worked.partition_dir(WORK), ".txnindex"))
    found = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", printed)
    # Each transaction has a record and a marker.
    expected = [(0, 2 * at, 2 * at + 1, 2 * at + 2) for at, (_, commits) in enumerate(TRANSACTIONS) if not commits]
    assert [tuple(map(int, row)) for row in found] == expected


@pytest.mark.parametrize("topic", [OFFSETS, DECISIONS, WORK, TABLE])
def test_indexes_of_internal_topics_pass_the_tools_sanity_checks(worked: Node, java: Talker, topic: str) -> None:
    """The indexes of compacted segments pass, too."""
    directory = worked.partition_dir(topic)
    for suffix in (".index", ".timeindex"):
        printed = dumped(java, "--index-sanity-check", "--files", files(directory, suffix))
        assert len(re.findall("passed sanity check|is empty", printed)) == len(list(directory.glob(f"*{suffix}")))
        assert "passed sanity check" in printed or topic == DECISIONS, "its one segment is too short for an entry"
        verified = dumped(java, "--verify-index-only", "--files", files(directory, suffix))
        assert not re.search("Mismatches|mismatch|out of order", verified), verified


def test_compacted_segments_have_the_newest_value_of_each_key_and_nothing_aborted(worked: Node, java: Talker) -> None:
    directory = worked.partition_dir(TABLE)
    printed = dumped(java, "--deep-iteration", "--print-data-log", "--files", files(directory, ".log"))
    assert "isvalid: false" not in printed
    rows = re.findall(r"^\| offset: (\d+).* key: (\w+) payload: (\w+)$", printed, re.MULTILINE)
    offsets = [int(offset) for offset, _, _ in rows]
    assert offsets == sorted(set(offsets))
    assert len(rows) < ROWS
    committed = {f"k{number % KEYS}": f"v{number}" for number in range(ROWS) if not is_aborted(number)}
    kept = {key: value for _, key, value in rows if not is_aborted(int(value[1:]))}
    assert kept == committed
    cleaned = sorted(directory.glob("*.log"))[0]
    first = dumped(java, "--deep-iteration", "--print-data-log", "--files", str(cleaned))
    values = [int(number) for number in re.findall(r" payload: v(\d+)$", first, re.MULTILINE)]
    assert not any(map(is_aborted, values))
