"""One node with a store, one Java and one Node.js process for all tests of real clients, in one worker (xdist_group)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import tools
from tests.support import node_packages
from tests.support.node import Node
from tests.support.talker import Talker

HERE = Path(__file__).parent
#: Groups wait for no further members, and sessions may be short.
SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1000}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("clients"))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("clients"), settings=SOON) as started:
        yield started


@pytest.fixture(scope="session")
def java() -> Iterator[Talker]:
    with tools.start() as talker:
        yield talker


@pytest.fixture(scope="session")
def javascript() -> Iterator[Talker]:
    with start_javascript() as talker:
        yield talker


def start_javascript() -> Talker:
    environment = {**os.environ, "NODE_PATH": str(node_packages.node_path())}
    return Talker(["node", str(HERE / "javascript" / "driver.js")], environment)
