"""Both brokers, started once a run, and kept for all sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.judge import Judge
from tests.support.apache_kafka import ApacheKafka
from tests.support.node import Node


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-counts", action="store_true", help="write tests/differential/counts.json anew")


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with ApacheKafka(tmp_path_factory.mktemp("kafka")) as kafka, Node(tmp_path_factory.mktemp("tidelog")) as node:
        yield Judge(kafka.address, node.kafka)
