"""A program that copies a topic in transactions is killed at random moments, and so is the node: the copy has each record once.

Each death waits until the copier copies, so some of them leave an open transaction, which the next copier aborts. The records
of both topics are offloaded and evicted meanwhile, aborted ones among them.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.faults.clients import QUICK_RETRIES, create_topic, until
from tests.faults.copier import GROUP
from tests.support.children import start_child
from tests.support.node import Node

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
SOURCE, TARGET, PARTITIONS = "source", "target", 3
SETTINGS: dict[str, str | int | bool] = {
    "log.retention.check.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}
#: Deaths of the copier in `make faults`, over two nodes that die about half as often; a longer run sets the variable.
DEATHS = int(os.environ.get("TIDELOG_FAULT_DEATHS", "50"))
#: After this many deaths of a copier, some have left an open transaction; after fewer, perhaps none.
MANY = 10
#: Deaths of the other clients' copiers.
FEW_DEATHS = 6
#: Records that are added to the source, in each round that finds fewer left to copy.
A_ROUND = 2000
PATIENCE_S = 90.0
#: Seconds after which a copier that outlived a death of the node is killed if it does not continue. librdkafka may hang in
#: `send_offsets_to_transaction` beyond its timeout (confluentinc/librdkafka#5456): it has the answer to AddOffsetsToTxn, and
#: sends no TxnOffsetCommit.
HUNG_S = 3.0


class Copying:
    def __init__(self, node: Node, rng: random.Random, client: str) -> None:
        self.node, self.rng, self.client = node, rng, client
        self.sent = self.died = self.rounds = 0
        #: The monotonic time at which a copier that outlived the node counts as hung.
        self.hung_at = math.inf
        self.process: subprocess.Popen[bytes] | None = None
        self._reader = Consumer({"bootstrap.servers": node.kafka, "group.id": GROUP, **QUICK_RETRIES})

    def start(self) -> None:
        self.hung_at = math.inf
        words = [sys.executable, "-m", "tests.faults.copier", self.client, self.node.kafka, SOURCE, TARGET]
        with (self.node.directory / "copier.output").open("ab") as output:
            self.process = start_child([*words, str(self.rng.getrandbits(30))], stderr=output)

    def advances(self, left: int) -> bool:
        """Whether the copier has fewer than `left` records to copy. A copier that has ended, as after a fatal error, is started
        again."""
        if self.process is None or self.process.poll() is not None:
            self.kill()
            self.start()
        if self.lag() < left:
            return True
        if time.monotonic() > self.hung_at:
            self.kill()
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def fill(self) -> None:
        producer = Producer({"bootstrap.servers": self.node.kafka, "enable.idempotence": True, **QUICK_RETRIES})
        for number in range(self.sent, self.sent + A_ROUND):
            producer.produce(SOURCE, b"%06d" % number, partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0
        self.sent += A_ROUND

    def round(self) -> None:
        """Kills the copier, the node or both while the copier copies; the random moment is the purpose."""
        self.rounds += 1
        left = self.lag()
        if left < A_ROUND:
            self.fill()
            left += A_ROUND
        until(lambda: self.advances(left), "the copier copies", PATIENCE_S)
        time.sleep(self.rng.uniform(0, 0.3))
        victim = self.rng.choice(("copier", "copier", "node", "both"))
        if victim != "copier":
            self.node.kill()
            time.sleep(self.rng.uniform(0, 0.3))
        if victim != "node":
            self.kill()
            self.died += 1
        if victim != "copier":
            self.node.start()
            self.hung_at = time.monotonic() + HUNG_S

    def copied(self) -> list[bytes]:
        """The committed records of the copy, up to the current last stable offsets."""
        reader = Consumer({"bootstrap.servers": self.node.kafka, "group.id": "judge", "enable.auto.commit": False})
        try:
            places = [TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)]
            ends = {each.partition: reader.get_watermark_offsets(each, 30)[1] for each in places}
            reader.assign(places)
            found: list[bytes] = []
            deadline = time.monotonic() + PATIENCE_S
            while any(each.offset < ends[each.partition] for each in reader.position(places) if ends[each.partition]):
                assert time.monotonic() < deadline, (reader.position(places), ends)
                found += [bytes(each.value() or b"") for each in reader.consume(500, 0.2) if each.error() is None]
            return found
        finally:
            reader.close()

    def lag(self) -> int:
        wanted = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                committed = self._reader.committed(wanted, PATIENCE_S)
                return self.sent - sum(max(each.offset, 0) for each in committed)
            except (
                KafkaException
            ) as error:  # librdkafka gives up while a restarted node does not lead the group's partition
                if error.args[0].code() != KafkaError.NOT_COORDINATOR or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        self.kill()
        self._reader.close()

    def judge(self) -> None:
        """Asserts that no record is copied twice, and that every copied record was sent."""
        times = Counter(self.copied())
        assert not [value for value, many in times.items() if many > 1], times
        assert set(times) <= {b"%06d" % number for number in range(self.sent)}


def run(node: Node, seed: int, deaths: int, client: str = "librdkafka") -> None:
    """Runs rounds until copiers have died `deaths` times, not counting hung ones."""
    print(f"seed {seed}: TIDELOG_FAULT_SEED={seed} replays it")
    with node:
        copying = Copying(node, random.Random(seed), client)
        create_topic(node, SOURCE, PARTITIONS)
        create_topic(node, TARGET, PARTITIONS)
        try:
            while copying.died < deaths:
                copying.round()
            copying.kill()
            until(lambda: copying.advances(1), "the copier has caught up", PATIENCE_S)
        finally:
            copying.close()
        copying.judge()
        assert len(copying.copied()) == copying.sent
        node.restart()
        copying.judge()
        assert len(copying.copied()) == copying.sent
        fenced = node.output().count("transaction.fenced")
        print(
            f"{copying.sent} records, {copying.rounds} rounds, {copying.died} deaths of the copier, "
            f"{fenced} left an open transaction"
        )
        assert fenced or copying.died < MANY
        assert "segment.evicted" in node.output()


def test_a_copy_has_each_record_once(tmp_path: Path) -> None:
    run(Node(tmp_path, settings=SETTINGS), SEED, deaths=2)


@pytest.mark.faults
@pytest.mark.timeout(60 + 20 * DEATHS)
@pytest.mark.parametrize("seed", [SEED + 1, SEED + 2])
def test_a_copy_has_each_record_once_after_many_deaths(tmp_path: Path, seed: int) -> None:
    run(Node(tmp_path, settings=SETTINGS), seed, deaths=DEATHS // 2)


@pytest.mark.faults
@pytest.mark.timeout(60 + 40 * FEW_DEATHS)
@pytest.mark.parametrize("client", ["kafka_python", "aiokafka", "java", "kafkajs"])
def test_copies_of_other_clients_have_each_record_once(tmp_path: Path, client: str) -> None:
    run(Node(tmp_path, settings=SETTINGS), SEED + 3, FEW_DEATHS, client)
