"""A node that may open 1,024 files, and strangers' connections that take them: its logs keep working, clients are accepted
again without a restart, and the node reports and counts the shortage."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import single_requests
from tests.faults.clients import create_topic, seal, until
from tests.support.node import Node

TOPIC = "scarce"
LIMIT = 1024
SMALL = {"internal.segment.bytes": "2000", "retention.ms": "-1"}


class Limited(Node):
    """A node with this soft and hard limit of open files, as `ulimit -n` sets them."""

    soft = hard = LIMIT

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={self.soft}:{self.hard}", *super().command()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Limited]:
    with Limited(tmp_path) as started:
        assert isinstance(started, Limited)
        yield started


@contextlib.contextmanager
def strangers(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Opens `count` silent connections. The kernel accepts the connections that the node does not."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(20)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect((host, int(port)))
            made.append(connection)
        yield made


def metric(node: Node, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def open_files(node: Node) -> int:
    assert node.process is not None
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


def goes_on(node: Node, partitions: int) -> None:
    for number in range(partitions):
        code, _ = single_requests.produce(node.kafka, TOPIC, b"x" * 1500, partition=number)
        assert code == single_requests.NONE


@pytest.mark.parametrize("server", ["kafka", "http", "grpc"])
def test_other_connections_take_no_descriptor_that_a_log_needs(node: Limited, server: str) -> None:
    create_topic(node, TOPIC, 8, configs=SMALL)
    goes_on(node, 8)
    before = open_files(node)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(single_requests.connected(node.kafka))
        stack.enter_context(strangers(getattr(node, server), LIMIT + 26))
        until(lambda: open_files(node) > before + 40, "the other clients are connected")
        for _ in range(6):
            for number in range(8):
                assert client.produce(TOPIC, b"x" * 1500, partition=number)[0] == single_requests.NONE
    until(lambda: open_files(node) < before + 40, "the other clients have left")
    goes_on(node, 8)
    seal(node, TOPIC)
    with urllib.request.urlopen(f"http://{node.http}/readyz", timeout=20) as answer:
        assert json.loads(answer.read())["refusing_partitions"] == []
    assert metric(node, "kafka_server_replicamanager_offlinereplicacount") == 0


def test_the_descriptor_limit_is_raised_and_the_need_is_logged(tmp_path: Path) -> None:
    node = Limited(tmp_path, settings={"max.connections": 5000})
    node.soft, node.hard = 512, 2048
    with node:
        assert node.process is not None
        limits = Path(f"/proc/{node.process.pid}/limits").read_text()
        assert next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files")) == [
            "2048",
            "2048",
        ]
        said = next(line for line in node.output().splitlines() if "descriptors.few" in line)
        assert "limit=2048" in said and "wanted=5" in said
