"""kill -9 at random moments under load: no acknowledged record is lost, moved or repeated.

Producers keep running through every death of the node, while it rolls, offloads, commits, evicts, and recovers (the restarts
are killed too). After each restart everything is read from the beginning, out of both tiers, and the whole history is
judged. This tests recovery, not flushing: bytes handed to the kernel survive the death of a process.

A failure names its seed: `TIDELOG_FAULT_SEED=<seed>` repeats the choice of moments (the interleaving is up to the machine).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.faults.clients import Load, create_topic, local_bytes, read_everything, seal, until
from tests.faults.processes import kill_broker, kill_node, kill_tier
from tests.history.passes import History, violations
from tests.support.node import Node
from tests.support.s3_servers import BUCKET, S3Server

TOPIC = "killed"
PARTITIONS = 3
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
#: Records that each of three producers may send per round.
A_ROUND = 600
SETTINGS = {"log.retention.check.interval.ms": 200, "tidelog.tier.delete.grace.ms": 4000}


class KilledNode:
    """One node through many deaths, with its load and a judgement after each."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.rng = random.Random(seed)
        self.history = History()
        self.epochs = dict.fromkeys(range(PARTITIONS), -1)

    def run(self, rounds: int) -> None:
        create_topic(self.node, TOPIC, PARTITIONS)
        load = Load(
            self.history,
            self.node.kafka,
            TOPIC,
            PARTITIONS,
            idempotent=2,
            plain=1,
            rng=random.Random(self.rng.random()),
        )
        with load:
            self.rising_epochs()
            for _ in range(rounds):
                self.die(load)
                self.rising_epochs()
                self.judge(load)
            load.settle()
            self.judge(load)
        self.node.restart()
        seal(self.node, TOPIC)
        until(lambda: not local_bytes(self.node, TOPIC, PARTITIONS), "no segment file is left with a record in it")
        self.judge(load)

    def die(self, load: Load) -> None:
        """Kills the node at a random moment of a round's work; sometimes once more while the next start recovers."""
        goal = load.acknowledged + self.rng.randrange(1, 3 * A_ROUND)  # before `more`: at most the granted records
        load.more(A_ROUND)
        until(lambda: load.failures or load.acknowledged >= goal, f"{goal} records are acknowledged")
        assert not load.failures, load.failures
        if self.rng.random() < 0.3:
            kill_tier(self.node.pid)
        self.pause(0.8)
        self.rng.choice((kill_node, kill_broker))(self.node.pid)
        self.node.kill()
        while self.rng.random() < 0.3:
            self.node.spawn()
            self.pause(1.5)
            kill_node(self.node.pid)
            self.node.kill()
        self.node.start()

    def pause(self, longest_s: float) -> None:
        """Waits for no condition: the random moment is the purpose."""
        time.sleep(self.rng.uniform(0, longest_s))

    def rising_epochs(self) -> None:
        """Asserts that every start leads under a higher epoch than the one before."""
        admin = AdminClient({"bootstrap.servers": self.node.kafka})
        for partition, before in self.epochs.items():
            wanted = {TopicPartition(TOPIC, partition): OffsetSpec.latest()}
            found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=30)
            epoch = next(iter(found.values())).result().leader_epoch
            assert epoch > before, f"partition {partition}: leader epoch {epoch} after {before}"
            self.epochs[partition] = epoch

    def judge(self, load: Load) -> None:
        acks = len(self.history.acks)
        found = read_everything(self.node.kafka, TOPIC, PARTITIONS, acks=acks)
        self.history.passes = [*self.history.passes[-1:], found]
        told = violations(self.history, exactly_once=load.exactly_once)
        assert not told, "\n".join(told)


def run(node: Node, seed: int, rounds: int) -> None:
    print(f"seed {seed}: TIDELOG_FAULT_SEED={seed} replays it")
    killed = KilledNode(node, seed)
    with node:
        killed.run(rounds)


def test_nothing_is_lost_when_the_node_is_killed(tmp_path: Path) -> None:
    run(Node(tmp_path, settings=SETTINGS), SEED, rounds=2)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [SEED + 1, SEED + 2])
def test_nothing_is_lost_in_many_deaths(tmp_path: Path, seed: int) -> None:
    """Two nodes, not one for longer: after each death all that was ever written is read and judged."""
    run(Node(tmp_path, settings=SETTINGS), seed, rounds=12)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [SEED + 3, SEED + 4])
def test_nothing_is_lost_in_many_deaths_over_s3(tmp_path: Path, seed: int, versitygw: S3Server) -> None:
    node = Node(
        tmp_path,
        store=f"s3://{BUCKET}/killed-{seed}",
        settings=SETTINGS,
        flags=["--s3-endpoint", versitygw.endpoint],
    )
    run(node, seed, rounds=8)
