"""Both brokers, in each setup that a session needs, started once per run and kept for all sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.observability.client_telemetry import NAME as RECEIVER
from tests.differential.judge import Broker, Judge, Setup
from tests.support import kafka_jars
from tests.support.apache_kafka import ApacheKafka
from tests.support.node import Node
from tests.support.ports import free_port

KAFKAS_RECEIVER = Path(__file__).with_name("MetricsReceiver.java")

QUICK = kafka_jars.QUICK_START
#: Configs that Kafka needs to run alone; tidelog gets them too, so that they cause no difference.
ONE_REPLICA = (".replication.factor", ".min.isr")
#: Short intervals for the background work of brokers with a tier.
EAGER: dict[str, str | int | bool] = {"log.retention.check.interval.ms": 200}
#: Setups of which both brokers get the same configs.
SETTINGS: dict[Setup, dict[str, str | int | bool]] = {
    Setup.GROUPS: {
        "group.initial.rebalance.delay.ms": 0,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    },
    Setup.REPLICAS: {"offsets.topic.replication.factor": 3, "transaction.state.log.replication.factor": 3},
}
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
        "--write-counts", action="store_true", help="write tests/differential/counts.json and pinned.json anew"
    )


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with ExitStack() as stack:

        def brokers(setup: Setup) -> tuple[Broker, Broker]:
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

            def restart_kafka() -> None:
                kafka.stop()
                kafka.start()

            return Broker(kafka.address, restart_kafka), Broker(node.kafka, node.restart)

        yield Judge(brokers)
