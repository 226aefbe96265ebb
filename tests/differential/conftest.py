"""Both brokers, in each setup that a session needs, started once per run and kept for all sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.observability.client_telemetry import NAME as RECEIVER
from tests.differential.judge import Brokers, Judge, Setup
from tests.differential.routed_peer import place_internal_topics
from tests.support import kafka_jars
from tests.support.apache_kafka import NODE_ID, ApacheKafka
from tests.support.cluster import Cluster
from tests.support.kafka_cluster import KafkaCluster
from tests.support.node import Node
from tests.support.ports import free_port

KAFKAS_RECEIVER = Path(__file__).with_name("MetricsReceiver.java")

QUICK = kafka_jars.QUICK_START
#: Configs that Kafka needs to run alone; tidelog gets them too, so that they cause no difference.
ONE_REPLICA = (".replication.factor", ".min.isr")
#: Short intervals for the background work of brokers with a tier.
EAGER: dict[str, str | int | bool] = {"log.retention.check.interval.ms": 200}
#: By setup, the configs that both brokers get.
SETTINGS: dict[Setup, dict[str, str | int | bool]] = {
    Setup.GROUPS: {
        "group.initial.rebalance.delay.ms": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    },
    Setup.REPLICAS: {"offsets.topic.replication.factor": 3, "transaction.state.log.replication.factor": 3},
}
#: Configs of three brokers. Their sessions take longer, so retention is never due within one: old records would expire.
PATIENT: dict[str, str | int | bool] = {**SETTINGS[Setup.GROUPS], "log.retention.check.interval.ms": 3_600_000}
KAFKAS_TIER: dict[str, str | int | bool] = {
    **EAGER,
    "log.initial.task.delay.ms": 200,
    "remote.log.manager.task.interval.ms": 200,
    "remote.log.storage.system.enable": True,
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-counts", action="store_true", help="rewrite tests/differential/counts.json and pinned.json"
    )


def three_brokers(stack: ExitStack, left: Path, right: Path) -> tuple[Brokers, Brokers]:
    """Both clusters. The partitions of the coordinators' topics are on the same brokers in both."""
    kafka = KafkaCluster(left, settings={**PATIENT, "log.initial.task.delay.ms": 3_600_000}, jvm=QUICK)
    alone = (key for key in kafka.nodes[NODE_ID].configs() if key.endswith(ONE_REPLICA))
    cluster = Cluster(right, f"file://{right / 'store'}", {**dict.fromkeys(alone, 1), **PATIENT})
    for node in cluster.nodes.values():
        node.kafka = f"127.0.0.1:{free_port()}"
        node.flags += ["--advertised-listeners", f"PLAINTEXT://{node.kafka}"]
    stack.enter_context(kafka)
    stack.enter_context(cluster)
    sides = (
        Brokers({broker: node.address for broker, node in kafka.nodes.items()}, kafka.restart),
        Brokers({broker: node.kafka for broker, node in cluster.nodes.items()}, lambda n: cluster.nodes[n].restart()),
    )
    for name, side in zip(("kafka", "tidelog"), sides, strict=True):
        place_internal_topics(name, side.addresses)
    return sides


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with ExitStack() as stack:

        def brokers(setup: Setup) -> tuple[Brokers, Brokers]:
            if setup is Setup.THREE:
                return three_brokers(stack, *(tmp_path_factory.mktemp(name) for name in ("kafka-3", "tidelog-3")))
            left, right = (tmp_path_factory.mktemp(name) for name in ("kafka", "tidelog"))
            if setup is Setup.RECEIVER:
                kafka_jars.compile_class(KAFKAS_RECEIVER, left)
                kafka = ApacheKafka(
                    left, settings={"metric.reporters": KAFKAS_RECEIVER.stem}, classes=[left], jvm=QUICK
                )
                node = Node(right, settings={"metric.reporters": RECEIVER})
            elif setup is Setup.TIERED:
                tier = {**KAFKAS_TIER, "rsm.config.dir": str(left / "tier")}
                kafka = ApacheKafka(left, settings=tier, classes=[kafka_jars.tiered_storage()], jvm=QUICK)
                node = Node(right, settings=EAGER)
            elif setup in SETTINGS:
                kafka, node = (
                    ApacheKafka(left, settings=SETTINGS[setup], jvm=QUICK),
                    Node(right, settings=SETTINGS[setup]),
                )
            else:
                kafka, node = ApacheKafka(left, jvm=QUICK), Node(right)
            alone = (key for key in kafka.configs() if key.endswith(ONE_REPLICA) and not key.startswith("rlmm."))
            node.settings = {**dict.fromkeys(alone, 1), **node.settings}
            # Kafka has a configured advertised address, so tidelog gets one too.
            node.kafka = f"127.0.0.1:{free_port()}"
            node.flags = [*node.flags, "--advertised-listeners", f"PLAINTEXT://{node.kafka}"]
            stack.enter_context(kafka)
            stack.enter_context(node)

            def restart_kafka(_: int) -> None:
                kafka.stop()
                kafka.start()

            return (
                Brokers({NODE_ID: kafka.address}, restart_kafka),
                Brokers({NODE_ID: node.kafka}, lambda _: node.restart()),
            )

        yield Judge(brokers)
