"""Histories of real clients with a cluster of three brokers have no anomaly.

Each broker, also the one with the controller, is killed, paused and restarted, and the store fails. The partitions of all
topics, also of the coordinators' topics, move between the brokers. One broker's clock is set ahead or back by hours or days,
and right again later. Further topics and groups are created and deleted, and the configs of topics and brokers change.

The clients and their topics are those of `test_faulty_node.py`. At the end everything is read three times: as it is, from the
bucket alone, and after a restart of all brokers.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from concurrent import futures
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from service.cli.client.move_requests import moving
from tests.faults import bucket
from tests.faults.clients import alter_topic, local_bytes, until
from tests.faults.processes import kill_broker, kill_node, kill_tier, tier_process
from tests.history.anomalies import anomalies, told
from tests.history.recorder import Recorder
from tests.history.stepped_clock import SteppedClock
from tests.history.test_faulty_node import (
    PARTITIONS,
    SEED,
    SETTINGS,
    SOAK_S,
    TOPICS,
    clients,
    outcomes_of,
    recorder_of,
)
from tests.service.cli.support import tidelog
from tests.support.cluster import Cluster
from tests.support.node import Node
from tests.support.s3_proxy import S3Proxy, answer, delayed, hang_up_after, hang_up_before
from tests.support.s3_servers import BUCKET, S3Server

#: Seconds during which faults are committed.
A_HISTORY_S = 45.0
#: Longer than a broker's session: the broker is fenced, and its lease ends.
LONG_PAUSE_S = 11.0
COORDINATORS = ("__consumer_offsets", "__transaction_state")
WHOLE = frozenset(
    {"move", "kill", "kill_controller", "pause", "pause_controller", "restart", "store_fails", "kill_tier"}
    | {"step_clock", "change_topics", "change_configs"}
)
#: Seconds after which a wrong clock is set right before the next fault. The store refuses a broker with a wrong clock, so a
#: coordinator that moved there cannot load, and clients wait for a minute at most.
LONGEST_WRONG_S = 10.0
#: Hours by which a broker's clock is wrong. Producers expire after a day, committed offsets after a week.
WRONG_HOURS = (-100, -5, 3, 30, 100)
#: Values of the configs that change, by topic. They alter nothing that a client may see.
CHANGING: dict[str, dict[str, tuple[str, ...]]] = {
    "log": {
        "internal.segment.bytes": ("16384", "32768", "65536"),
        "local.retention.bytes": ("0", "60000"),
        "tidelog.tier.max.lag.ms": ("100", "300", "2000"),
        "retention.ms": ("-1", "2592000000"),
    },
    "table": {
        "min.cleanable.dirty.ratio": ("0.01", "0.5"),
        "min.compaction.lag.ms": ("0", "1000"),
        "local.retention.bytes": ("0", "60000"),
    },
}
#: The same for a broker.
CHANGING_OF_A_BROKER = {"log.cleaner.backoff.ms": ("50", "500"), "log.segment.bytes": ("1073741824", "536870912")}


class FaultyCluster:
    """Brokers behind one proxy to their store, and their faults."""

    def __init__(
        self, cluster: Cluster, proxy: S3Proxy, rng: random.Random, clocks: Mapping[int, SteppedClock]
    ) -> None:
        self.cluster, self.proxy, self.rng, self.clocks = cluster, proxy, rng, clocks
        self.passing: list[str] = []
        self.faults = (
            self.change_topics,
            self.move,
            self.step_clock,
            self.kill,
            self.change_configs,
            self.move,
            self.kill_controller,
            self.pause,
            self.move,
            self.pause_controller,
            self.restart,
            self.store_fails,
            self.kill_tier,
        )
        self.done: Counter[str] = Counter()
        self.stepped_at = time.monotonic()

    def run(self, seconds: float, wanted: Set[str]) -> None:
        """Commits rounds of all faults, each in a random order, for `seconds` and until each of `wanted` was committed."""
        deadline = time.monotonic() + seconds
        left: list[Callable[[], None]] = []
        while time.monotonic() < deadline or wanted - set(self.done):
            if not left:
                left = self.rng.sample(self.faults, len(self.faults))
                left.sort(key=lambda fault: fault.__name__ in wanted)  # faults are taken from the end
            self.wait(1.0)
            if time.monotonic() - self.stepped_at > LONGEST_WRONG_S:
                self.set_clocks_right()
            fault = left.pop()
            fault()
            self.done[fault.__name__] += 1

    def wait(self, longest_s: float) -> None:
        """Waits for no condition: the random moment is the purpose."""
        time.sleep(self.rng.uniform(0, longest_s))

    def any_node(self) -> Node:
        return self.cluster.nodes[self.rng.choice((1, 2, 3))]

    def move(self) -> None:
        move_everything(self.any_node().kafka, self.rng)

    def _kill(self, node: Node) -> None:
        assert node.running, node.output_tail()
        self.rng.choice((kill_node, kill_broker))(node.pid)
        node.kill()
        self.wait(1.5)
        self.set_clocks_right()
        node.start()

    def kill(self) -> None:
        self._kill(self.cluster.nodes[self.rng.choice((2, 3))])

    def kill_controller(self) -> None:
        self._kill(self.cluster.nodes[1])

    def _pause(self, node: Node, seconds: float) -> None:
        paused = [node.pid]
        if (tier := tier_process(node.pid)) is not None and self.rng.random() < 0.5:
            paused.append(tier)
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # the length of the pause
        for pid in paused:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def pause(self) -> None:
        self._pause(self.cluster.nodes[self.rng.choice((2, 3))], self.rng.choice((1.0, 3.0, LONG_PAUSE_S)))

    def pause_controller(self) -> None:
        self._pause(self.cluster.nodes[1], self.rng.uniform(0, 5.0))

    def restart(self) -> None:
        self.set_clocks_right()
        self.any_node().restart()

    def store_fails(self) -> None:
        self.proxy.always(self.rng.choice((hang_up_before(), hang_up_after(), answer(503), delayed(2))))
        self.wait(4.0)
        if self.rng.random() < 0.5:
            self._kill(self.any_node())
        self.proxy.clear()

    def kill_tier(self) -> None:
        kill_tier(self.any_node().pid)

    def step_clock(self) -> None:
        """Sets one broker's clock wrong, until the next such fault or start: a node whose clock the store refuses does not
        start."""
        self.set_clocks_right()
        self.clocks[self.rng.choice((1, 2, 3))].step_hours(self.rng.choice(WRONG_HOURS))
        self.stepped_at = time.monotonic()

    def set_clocks_right(self) -> None:
        for clock in self.clocks.values():
            clock.step_hours(0)

    def change_topics(self) -> None:
        """Creates a topic, and a group with an offset in it. Every second topic gets more partitions and is deleted before the
        next one is created. A request without an answer is not repeated."""
        node = self.any_node()
        admin = AdminClient({"bootstrap.servers": node.kafka})
        with contextlib.suppress(KafkaException, futures.TimeoutError):
            if len(self.passing) % 2:
                admin.create_partitions([NewPartitions(self.passing[-1], 5)])[self.passing[-1]].result(5)
                admin.delete_topics([self.passing[-1]])[self.passing[-1]].result(5)
        self.passing.append(f"passing-{len(self.passing)}")
        with contextlib.suppress(KafkaException, futures.TimeoutError):
            admin.create_topics([NewTopic(self.passing[-1], 3, 1, config=TOPICS["log"])])[self.passing[-1]].result(5)
            group = ConsumerGroupTopicPartitions(self.passing[-1], [At(self.passing[-1], 0, 0)])
            admin.alter_consumer_group_offsets([group])[self.passing[-1]].result(5)
            if self.rng.random() < 0.5:
                admin.delete_consumer_groups([self.passing[-1]])[self.passing[-1]].result(5)

    def change_configs(self) -> None:
        """Changes the configs of a topic and of a broker. A request without an answer is not repeated."""
        topic, broker = self.rng.choice(tuple(CHANGING)), self.rng.choice((1, 2, 3))
        of_topic, of_broker = (
            [
                ConfigEntry(key, self.rng.choice(values), incremental_operation=AlterConfigOpType.SET)
                for key, values in changing.items()
            ]
            for changing in (CHANGING[topic], CHANGING_OF_A_BROKER)
        )
        wanted = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=of_topic),
            ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=of_broker),
        ]
        admin = self.cluster.admin(broker)
        with contextlib.suppress(KafkaException, futures.TimeoutError):
            for each in wanted:
                admin.incremental_alter_configs([each], request_timeout=5)[each].result(6)


def move_everything(bootstrap: str, rng: random.Random) -> None:
    """Requests moves of all partitions to random brokers, and does not wait for them. A request without an answer is not
    repeated."""
    with contextlib.suppress(KafkaError):
        admin = KafkaAdminClient(bootstrap_servers=[bootstrap], request_timeout_ms=5000)
        try:
            topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=5).topics
            wanted = {
                TopicPartition(topic, number): [rng.choice((1, 2, 3))]
                for topic in (*TOPICS, *COORDINATORS)
                if topic in topics
                for number in topics[topic].partitions
            }
            admin.alter_partition_reassignments(wanted)
        finally:
            admin.close()


def only_in_the_bucket(cluster: Cluster) -> None:
    """Returns once no broker's disk has a record of `log`. Some local segments of the compacted topic stay."""
    for topic, configs in TOPICS.items():
        alter_topic(cluster.nodes[1], topic, configs)
        sealed = tidelog("topic", "seal", topic, "--wait", "--timeout", "60", "-b", cluster.nodes[2].kafka)
        assert sealed.code == 0, sealed.err
    nodes = cluster.nodes.values()
    until(lambda: not any(local_bytes(node, "log", PARTITIONS) for node in nodes), "all records of the log are evicted")


def has_settled(cluster: Cluster) -> bool:
    """Whether every broker's metadata shows no move, and a leader for each partition."""
    for broker, node in cluster.nodes.items():
        topics = cluster.admin(broker).list_topics(timeout=10).topics.values()
        if moving(node.kafka) or any(each.leader < 0 for topic in topics for each in topic.partitions.values()):
            return False
    return True


def one_history(directory: Path, server: S3Server, seed: int) -> str:
    """Asserts that there is no anomaly in a history with all faults. Returns a summary in one line."""
    print(f"TIDELOG_FAULT_SEED={seed}")
    rng = random.Random(seed)
    with S3Proxy(server.endpoint) as proxy:
        store = f"s3://{BUCKET}/cluster-history/{seed}"
        prepared = Cluster(directory, store, SETTINGS, flags=["--s3-endpoint", proxy.endpoint])
        clocks = {broker: SteppedClock(directory / f"clock-{broker}") for broker in prepared.nodes}
        for broker, node in prepared.nodes.items():
            node.environment |= clocks[broker].environment
        with prepared as cluster:
            recorder = recorder_of(cluster.nodes[1])
            recorder.bootstrap = ",".join(node.kafka for node in cluster.nodes.values())
            faulty = FaultyCluster(cluster, proxy, rng, clocks)
            with clients(recorder, rng):
                faulty.run(A_HISTORY_S, WHOLE)
                faulty.set_clocks_right()
                until(
                    lambda: recorder.failures or all(outcomes_of(recorder)),
                    "transactions of each outcome, and of a group",
                )
            assert not recorder.failures, "\n".join(recorder.failures)
            until(lambda: has_settled(cluster), "all moves have ended")
            judged(recorder, cluster, seed)
            with bucket.opened(store, server.endpoint) as opened:
                assert [damage for damage in bucket.findings(opened) if not damage.startswith("orphan")] == []
            moved = sum(node.output().count("partition.handed_over") for node in cluster.nodes.values())
    outcomes = Counter(operation.outcome for operation in recorder.operations.done)
    values = sum(1 for operation in recorder.operations.done for _ in operation.sends())
    told_outcomes = ", ".join(f"{outcome.value} {many}" for outcome, many in outcomes.items())
    return f"{values} sends, {told_outcomes}; {moved} partitions moved; {dict(faulty.done)}"


def judged(recorder: Recorder, cluster: Cluster, seed: int) -> None:
    recorder.whole_reading("as it is")
    only_in_the_bucket(cluster)
    recorder.whole_reading("from the bucket")
    for node in cluster.nodes.values():
        node.restart()
    recorder.whole_reading("after a restart")
    found = anomalies(recorder.operations)
    assert not found, f"TIDELOG_FAULT_SEED={seed}\n{told(found)}"
    assert not recorder.failures, "\n".join(recorder.failures)


@pytest.mark.faults
@pytest.mark.timeout(SOAK_S + 900)
def test_histories_of_a_cluster_with_many_faults_have_no_anomaly(tmp_path: Path, versitygw: S3Server) -> None:
    """Runs one history, or as many as begin within the time of `make soak`."""
    deadline = time.monotonic() + SOAK_S
    for number in itertools.count(1):
        print(one_history(tmp_path / str(number), versitygw, SEED + number), flush=True)
        if time.monotonic() >= deadline:
            break
