"""The log cleaner beside Apache Kafka's: the same producers write the same records to both, both compact them, and the same
records are left. Kafka's DumpLogSegments then reads what the node's cleaner wrote."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.test_dump_log_segments import dumped, files
from tests.support.apache_kafka import ApacheKafka
from tests.support.clients import until
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = [pytest.mark.differential, pytest.mark.timeout(300)]

SETTINGS: dict[str, str | int | bool] = {"log.cleaner.backoff.ms": 50}
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.01",
    "remote.storage.enable": "false",
}
#: Number of records that are written last, with keys of their own, to close the segments that are compared.
PADDING = 60

Row = tuple[int, bytes, bytes | None]


class Pair:
    """Both brokers, with operations on a topic of each."""

    def __init__(self, kafka: ApacheKafka, node: Node) -> None:
        self.kafka, self.node = kafka, node
        self.addresses = (kafka.address, node.kafka)

    def create(self, topic: str, configs: dict[str, str]) -> None:
        for address in self.addresses:
            admin = AdminClient({"bootstrap.servers": address})
            admin.create_topics([NewTopic(topic, 1, 1, config={**COMPACTED, **configs})])[topic].result(30)

    def write(self, write: Callable[[str], None]) -> None:
        for address in self.addresses:
            write(address)

    def left(self, topic: str) -> list[list[Row]]:
        return [rows(address, topic) for address in self.addresses]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> object:
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(tmp_path_factory.mktemp("kafka"), settings=SETTINGS))
        node = stack.enter_context(Node(tmp_path_factory.mktemp("tidelog"), settings=SETTINGS))
        yield Pair(kafka, node)


def rows(address: str, topic: str) -> list[Row]:
    """All records that are left, including those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    found: list[Row] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(30)) is not None:
            if message.error() is not None:
                break
            offset, key = message.offset(), message.key()
            assert offset is not None
            assert key is not None
            found.append((offset, key, message.value()))
    finally:
        consumer.close()
    return found


def padded(producer: Producer, topic: str) -> None:
    for number in range(PADDING):
        write_alone(producer, topic, b"padding%d" % number, b"x" * 60)


def write_alone(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    """Writes a batch of one record and waits for the acknowledgement."""
    told: list[object] = []
    producer.produce(topic, key=key, value=value, on_delivery=lambda error, _: told.append(error))
    producer.flush(30)
    assert told == [None]


def compared(rows: list[Row]) -> list[Row]:
    """The rows without the padding, which may be in the active segment."""
    return [row for row in rows if not row[1].startswith(b"padding")]


def same_is_left(pair: Pair, topic: str, written: int) -> None:
    """Waits until both brokers have the same records left, fewer than were written."""

    def agree() -> bool:
        kafka, ours = (compared(left) for left in pair.left(topic))
        return kafka == ours and len(kafka) < written

    until(agree, "both brokers have the same records left", seconds=60)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_newest_records_and_tombstones_remain(pair: Pair, codec: str) -> None:
    topic = f"plain-{codec}"
    pair.create(topic, {})

    def write(address: str) -> None:
        rng = random.Random(codec)
        producer = Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 1000})
        for number in range(300):
            value = None if rng.random() < 0.2 else b"%d" % number * rng.randrange(1, 9)
            producer.produce(topic, key=b"k%d" % rng.randrange(40), value=value, timestamp=1_700_000_000_000 + number)
            if rng.random() < 0.3:
                producer.flush(30)
        producer.flush(30)
        padded(producer, topic)

    pair.write(write)
    same_is_left(pair, topic, 300)


def test_tombstones_are_removed_after_their_retention(pair: Pair) -> None:
    pair.create("tombstones", {"delete.retention.ms": "0"})

    def write(address: str) -> None:
        producer = Producer({"bootstrap.servers": address})
        for number in range(100):
            write_alone(producer, "tombstones", b"k%d" % (number % 20), None if number % 2 else b"%d" % number)

    def gone() -> bool:
        # A cleaning removes tombstones whose delete horizon has passed, and only new records make a log due for cleaning.
        pair.write(lambda address: padded(Producer({"bootstrap.servers": address}), "tombstones"))
        return [[row[0] for row in compared(left)] for left in pair.left("tombstones")] == [list(range(80, 100, 2))] * 2

    pair.write(write)
    until(gone, "both brokers have the values left, and no tombstone")


def test_records_of_committed_transactions_remain(pair: Pair) -> None:
    pair.create("transactions", {})

    def write(address: str) -> None:
        rng = random.Random(3)
        producers = []
        for name in ("a", "b"):
            producer = Producer({"bootstrap.servers": address, "transactional.id": f"compaction-{name}"})
            producer.init_transactions(30)
            producers.append(producer)
        for number in range(60):
            producer = producers[number % 2]
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 4)):
                producer.produce("transactions", key=b"k%d" % rng.randrange(15), value=b"%d" % number)
                producer.flush(30)
            if rng.random() < 0.4:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
        padded(Producer({"bootstrap.servers": address}), "transactions")

    pair.write(write)
    same_is_left(pair, "transactions", 60)


def test_kafkas_own_tool_reads_what_the_cleaner_wrote(pair: Pair, java: Talker) -> None:
    assert pair.node.stop() == 0
    try:
        for topic in ("plain-none", "plain-zstd", "tombstones", "transactions"):
            directory = pair.node.partition_dir(topic)
            printed = dumped(java, "--deep-iteration", "--print-data-log", "--files", files(directory, ".log"))
            assert "isvalid: false" not in printed
            offsets = [int(n) for n in re.findall(r"^\| offset: (\d+)", printed, re.MULTILINE)]
            assert offsets == sorted(set(offsets))
            indexes = files(directory, ".index")
            assert "Mismatches" not in dumped(java, "--verify-index-only", "--files", indexes)
            times = dumped(java, "--verify-index-only", "--files", files(directory, ".timeindex"))
            assert "Found timestamp mismatch" not in times
            assert "Found out of order timestamp" not in times
        assert "deleteHorizonMs: OptionalLong[" in dumped(
            java, "--files", files(pair.node.partition_dir("plain-none"), ".log")
        )
    finally:
        pair.node.start()
