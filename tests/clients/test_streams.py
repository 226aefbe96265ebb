"""Kafka Streams on the node: a word count through a death of the node, and its own smoke test, which counts, sums, joins and
windows 20,000 records and checks every result.

Streams reads in groups that rebalance cooperatively, writes through repartition topics and changelogs that it creates, and with
`exactly_once_v2` in transactions that carry its offsets.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import kafka_jars
from tests.support.children import start_child
from tests.support.node import Node

#: The topics that the smoke test expects, as Kafka's system tests create them.
TOPICS = (
    "data", "fk", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum", "sws-raw", "sws-suppressed", "cnt", "avg",
    "tagg", "wcnt",
)  # fmt: skip
PARTITIONS = 5
SECONDS = 900
SMOKE_TEST = "org.apache.kafka.streams.tests.StreamsSmokeTest"
WORD_COUNT = Path(__file__).parent / "java" / "WordCount.java"
WORD_COUNT_SECONDS = 120.0
SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


def lines(rng: random.Random) -> Iterator[str]:
    while True:
        yield " ".join(rng.choices(("kafka", "streams", "node", "bucket", "tier"), k=10))


def produce(node: Node, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True})
    for value in values:
        producer.produce("lines", value)
    assert producer.flush(SECONDS) == 0


class Counts:
    """The counts of a word in the order in which they were committed, read from the topic."""

    def __init__(self, node: Node) -> None:
        self._consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "judge", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition("counts", number, 0) for number in range(2)])
        self.seen: dict[str, list[int]] = {}

    def reach(self, expected: Mapping[str, int]) -> None:
        """Returns once each word has its count."""
        end = time.monotonic() + WORD_COUNT_SECONDS
        while {word: counts[-1] for word, counts in self.seen.items()} != expected:
            assert time.monotonic() < end, (self.seen, expected)
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    word = bytes(message.key() or b"").decode()
                    self.seen.setdefault(word, []).append(int.from_bytes(bytes(message.value() or b""), "big"))


@pytest.mark.differential
@pytest.mark.timeout(1000)
def test_words_are_counted_once_over_a_death_of_the_node(tmp_path: Path) -> None:
    """A count that is seen never falls and is never repeated: each is the result of one commit."""
    source = lines(random.Random(1))
    with Node(tmp_path, settings=SOON) as node, (tmp_path / "words.log").open("w") as output:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for created in admin.create_topics([NewTopic(each, 2, 1) for each in ("lines", "counts")]).values():
            created.result(30)
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        java = ["java", *kafka_jars.QUICK_START, quiet, "-cp", kafka_jars.streams(), str(WORD_COUNT)]
        written: list[str] = []
        with start_child([*java, node.kafka, str(tmp_path / "state")], stdout=output, stderr=output) as application:
            try:
                counts = Counts(node)
                for dies in (True, False):
                    more = list(itertools.islice(source, 150))
                    written += more
                    produce(node, more)
                    if dies:
                        counts.reach(Counter(" ".join(written).split()))
                        produce(node, more := list(itertools.islice(source, 150)))
                        written += more
                        node.kill()
                        node.start()
                    counts.reach(Counter(" ".join(written).split()))
            finally:
                application.kill()
        for word, seen in counts.seen.items():
            assert seen == sorted(set(seen)), word


@pytest.mark.differential
@pytest.mark.timeout(1000)
def test_kafkas_own_smoke_test_of_streams_succeeds(tmp_path: Path) -> None:
    jars = kafka_jars.streams()
    with Node(tmp_path, settings=SOON) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for created in admin.create_topics([NewTopic(each, PARTITIONS, 1) for each in TOPICS]).values():
            created.result(30)
        configs = tmp_path / "streams.properties"
        configs.write_text(
            f"bootstrap.servers={node.kafka}\nstate.dir={tmp_path / 'state'}\nprocessing.guarantee=exactly_once_v2\n"
            "num.stream.threads=3\nsession.timeout.ms=10000\nacceptable.recovery.lag=9223372036854775807\n"
        )
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = ["java", quiet, "-cp", jars, SMOKE_TEST, str(configs)]
        with (tmp_path / "process.log").open("w") as output:
            application = start_child([*command, "process"], stdout=output, stderr=subprocess.STDOUT)
            try:
                driver = subprocess.run([*command, "run"], capture_output=True, text=True, timeout=SECONDS, check=False)
            finally:
                application.terminate()
                application.wait(60)
    end = driver.stdout[-3000:]
    assert driver.returncode == 0, end
    assert "ALL-RECORDS-DELIVERED" in end, end
    assert "\nSUCCESS\n" in end, end
