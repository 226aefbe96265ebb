"""Brokers die while partitions move between them: nothing that was acknowledged is lost, and nothing is there twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as At
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError as PythonError

from tests.faults.clients import QUICK_RETRIES, TIERED, create_topic, until
from tests.faults.compacted_table import CONFIGS, TOPIC, Table
from tests.support.cluster import Cluster

pytestmark = pytest.mark.faults

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
PARTITIONS = 3
#: Rounds in `make faults`, each of which moves every partition; a longer run sets the variable.
ROUNDS = int(os.environ.get("TIDELOG_FAULT_DEATHS", "6"))
#: Seconds between the start of a move and a death, at most: a move of a short tail takes about as long.
LATEST_DEATH_S = 0.4


class Writer:
    """An idempotent producer of one partition, which never gives up. `acked`: the acknowledged numbers, in the order sent."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self.acked: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self._partition = partition
        self._stop = threading.Event()
        self._producer = Producer(
            {
                **QUICK_RETRIES,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": 300_000,
                "linger.ms": 1,
                # A batch of all records that wait during a move would be larger than a segment, and would be refused.
                "batch.num.messages": 100,
            }
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        for number in count():
            if self._stop.wait(0.002):
                break
            self._producer.produce("t", b"%d" % number, partition=self._partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        number = int(message.value() or b"")
        if error is None:
            self.acked.append(number)
        else:
            self.refused.append((number, str(error)))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def ask(cluster: Cluster, wanted: dict[int, int], topic: str = "t") -> None:
    """Asks for moves of partitions to brokers, until some broker has answered."""

    def is_answered() -> bool:
        try:
            admin = KafkaAdminClient(bootstrap_servers=[node.kafka for node in cluster.nodes.values() if node.running])
        except PythonError:
            return False
        try:
            targets = {TopicPartition(topic, number): [target] for number, target in wanted.items()}
            return set(admin.alter_partition_reassignments(targets).values()) == {None}
        except PythonError:
            return False
        finally:
            admin.close()

    until(is_answered, f"the move to {wanted} is accepted")


def read_partition(cluster: Cluster, number: int, wanted: int) -> list[int]:
    """All records of the partition; at least as many as `wanted`."""
    configs = {"bootstrap.servers": cluster.nodes[2].kafka, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer, found = Consumer(configs), list[int]()
    try:
        consumer.assign([At("t", number, 0)])
        _, end = consumer.get_watermark_offsets(At("t", number), timeout=30)

        def is_read() -> bool:
            messages = consumer.consume(1000, 0.2)
            found.extend(int(message.value() or b"") for message in messages if message.error() is None)
            return len(found) >= end

        until(is_read, f"{end} records, of {wanted} acknowledged")
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_deaths_lose_and_repeat_nothing(tmp_path: Path) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    rng = random.Random(SEED)
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}") as cluster:
        create_topic(cluster.nodes[1], "t", PARTITIONS, TIERED)
        writers = [
            Writer(",".join(node.kafka for node in cluster.nodes.values()), number) for number in range(PARTITIONS)
        ]
        try:
            until(lambda: all(writer.acked for writer in writers), "every partition is written")
            leaders = cluster.leaders(1, "t")
            for turn in range(ROUNDS):
                sources = dict(leaders)
                leaders = {
                    number: rng.choice([each for each in (1, 2, 3) if each != at]) for number, at in sources.items()
                }
                ask(cluster, leaders)
                # The rounds kill the source of partition 0, its target, and the controller in turn.
                dies = (sources[0], leaders[0], 1)[turn % 3]
                threading.Event().wait(rng.uniform(0, LATEST_DEATH_S))
                cluster.nodes[dies].kill()
                cluster.nodes[dies].start()
                wait_moved(cluster, leaders)
                wait_written(writers)
        finally:
            for writer in writers:
                writer.stop()
        for number, writer in enumerate(writers):
            assert writer.refused == []
            assert writer.acked == list(range(len(writer.acked)))
            assert read_partition(cluster, number, len(writer.acked)) == writer.acked


@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_a_table_moves_while_it_is_compacted(tmp_path: Path) -> None:
    """The newest value of each key is read after each move, and no older one, although both leaders replace segments."""
    print(f"TIDELOG_FAULT_SEED={SEED}")
    rng = random.Random(SEED)
    store = f"file://{tmp_path / 'store'}"
    with Cluster(tmp_path, store, {"log.cleaner.backoff.ms": 1, "log.retention.check.interval.ms": 200}) as cluster:
        configs = {**TIERED, **CONFIGS, "tidelog.tier.max.lag.ms": "100"}
        create_topic(cluster.nodes[1], TOPIC, 1, configs)
        table = Table(",".join(node.kafka for node in cluster.nodes.values()), rng)
        producer = table.producer()
        (leader,) = cluster.leaders(1, TOPIC).values()
        for turn in range(ROUNDS):
            table.write(producer, 300)
            source, leader = leader, rng.choice([each for each in (1, 2, 3) if each != leader])
            ask(cluster, {0: leader}, TOPIC)
            table.write(producer, 300)
            if turn % 3:
                node = cluster.nodes[source if turn % 3 == 1 else leader]
                threading.Event().wait(rng.uniform(0, LATEST_DEATH_S))
                node.kill()
                node.start()
            wait_moved(cluster, {0: leader}, TOPIC)
            assert producer.flush(60) == 0
            table.judge()
        for broker, node in cluster.nodes.items():
            assert node.running, f"broker {broker} ended: {node.output()[-2000:]}"
        until(lambda: sum(node.output().count("log.cleaned") for node in cluster.nodes.values()) > 0, "it is compacted")
        table.judge()
    fsck = [sys.executable, "-m", "service.cli.main", "fsck", "--store", store]
    ran = subprocess.run(fsck, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def wait_moved(cluster: Cluster, leaders: dict[int, int], topic: str = "t") -> None:
    until(lambda: cluster.leaders(2, topic) == leaders, f"the leaders are {leaders}")


def wait_written(writers: list[Writer]) -> None:
    known = [len(writer.acked) for writer in writers]
    until(
        lambda: all(len(writer.acked) > before for writer, before in zip(writers, known, strict=True)),
        "every partition is written again",
    )
