"""kill -9 at random moments while a compacted topic is written and cleaned: the newest value of each key is never lost and an
older one never rises again, on the local disk alone and with segments offloaded and evicted meanwhile.

Kills hit the cleaner between any two of its steps. What was sent and not acknowledged may be there or not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.clients import QUICK_RETRIES, until
from tests.faults.processes import kill_node
from tests.support.node import Node

SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
SETTINGS: dict[str, str | int | bool] = {"log.cleaner.backoff.ms": 1, "log.retention.check.interval.ms": 200}
TOPIC, KEYS, A_ROUND = "table", 30, 600
#: Deaths in `make faults`; a longer run sets the variable.
ROUNDS = int(os.environ.get("TIDELOG_FAULT_DEATHS", "4"))
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "retention.ms": "-1",
}
TIERS = {
    "local": {"remote.storage.enable": "false"},
    "kept in both tiers": {"local.retention.ms": "-1"},
    "evicted": {"local.retention.bytes": "20000"},
}


class Table:
    """`acked` and `sent` hold, by key, the number of the newest record that was acknowledged, and of the newest sent; `values`
    the value of each number, None for a tombstone."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node, self.rng = node, rng
        self.count = 0
        self.errors: set[str] = set()
        self.acked: dict[bytes, int] = {}
        self.sent: dict[bytes, int] = {}
        self.values: dict[int, bytes | None] = {}

    def producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.node.kafka,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 2000,  # a batch fits a segment
                **QUICK_RETRIES,
            }
        )

    def write(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            self.count += 1
            key, number = b"k%d" % self.rng.randrange(KEYS), self.count
            value = None if self.rng.random() < 0.2 else b"%d" % number * self.rng.randrange(1, 20)
            self.sent[key], self.values[number] = number, value

            def told(error: object, _: object, key: bytes = key, number: int = number) -> None:
                if error is not None:
                    self.errors.add(str(error))
                else:
                    self.acked[key] = max(number, self.acked.get(key, 0))

            producer.produce(TOPIC, key=key, value=value, on_delivery=told)
            producer.poll(0)

    def found(self) -> dict[bytes, bytes]:
        consumer = Consumer({"bootstrap.servers": self.node.kafka, "group.id": "g", "enable.partition.eof": True})
        table: dict[bytes, bytes] = {}
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            while (message := consumer.poll(30)) is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            assert message is not None, "the log was not read to its end"
            error = message.error()
            assert error is not None
            assert error.code() == KafkaError._PARTITION_EOF, error
        finally:
            consumer.close()
        return table

    def judge(self) -> None:
        """All that was sent is acknowledged."""
        assert not self.errors
        assert self.acked == self.sent
        expected = {key: value for key, number in self.sent.items() if (value := self.values[number]) is not None}
        assert self.found() == expected

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            producer = self.producer()
            self.write(producer, A_ROUND)
            # For no condition: the random moment is the purpose.
            time.sleep(self.rng.uniform(0, 1.0))
            kill_node(self.node.pid)
            self.node.kill()
            self.node.start()
            assert producer.flush(60) == 0
            self.judge()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tiers", TIERS)
def test_a_table_survives_kills_while_it_is_compacted(tmp_path: Path, tiers: str) -> None:
    print(f"TIDELOG_FAULT_SEED={SEED}")
    with Node(tmp_path, settings=SETTINGS) as node:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config={**CONFIGS, **TIERS[tiers]})])[TOPIC].result(30)
        table = Table(node, random.Random(SEED))
        table.run(ROUNDS)
        until(lambda: "log.cleaned" in node.output_path.read_text(), "the topic is compacted")
        table.judge()
        store, data_dir = node.store, str(node.data_dir)
    if tiers != "local":
        command = (sys.executable, "-m", "service.cli.main", "fsck", "--data-dir", data_dir, "--store", store)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
