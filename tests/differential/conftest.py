"""Both brokers, in each setup that a session asks for, started once a run and kept for all sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.observability.client_telemetry import NAME as RECEIVER
from tests.differential.judge import Judge, Setup
from tests.support import kafka_jars
from tests.support.apache_kafka import ApacheKafka
from tests.support.node import Node

KAFKAS_RECEIVER = Path(__file__).with_name("MetricsReceiver.java")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-counts", action="store_true", help="write tests/differential/counts.json anew")


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with ExitStack() as stack:

        def brokers(setup: Setup) -> tuple[str, str]:
            left, right = (tmp_path_factory.mktemp(name) for name in ("kafka", "tidelog"))
            if setup is Setup.RECEIVER:
                kafka_jars.compile_class(KAFKAS_RECEIVER, left)
                kafka = ApacheKafka(left, settings={"metric.reporters": KAFKAS_RECEIVER.stem}, classes=[left])
                node = Node(right, settings={"metric.reporters": RECEIVER})
            else:
                kafka, node = ApacheKafka(left), Node(right)
            return stack.enter_context(kafka).address, stack.enter_context(node).kafka

        yield Judge(brokers)
