"""Programs in other languages, built from the .proto files alone, send records to a node and read other clients' records."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.values import ProducerOptions, ReaderOptions
from tests.support import grpc_java
from tests.support.install_grpc_go import ROOT, grpc_go
from tests.support.node import Node
from tests.support.node_packages import node_path

JAVASCRIPT = ROOT / "examples" / "grpc_javascript"

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    started = Node(tmp_path_factory.mktemp("node"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module", params=["go", "java", "javascript"])
def program(request: pytest.FixtureRequest) -> Program:
    environment = dict(os.environ)
    if request.param == "go":
        found = grpc_go()
        if isinstance(found, str):
            pytest.skip(found)
        command = [str(found)]
    elif request.param == "java":
        command = ["java", "-cp", grpc_java.class_path(), "Main"]
    else:
        environment["NODE_PATH"] = str(node_path(JAVASCRIPT))
        command = ["node", str(JAVASCRIPT / "main.js"), str(ROOT)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        whole = [*command, *arguments]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False, env=environment)

    run.__name__ = request.param
    return run


def test_they_send_and_read_records(node: Node, program: Program) -> None:
    topic, language = (
        f"from-{program.__name__}",
        {"go": "Go", "java": "Java", "javascript": "JavaScript"}[program.__name__],
    )
    with BlockingClient.connect(node.grpc) as client:
        client.create_topic(topic, partitions=2)
        with client.producer(ProducerOptions(compression="lz4")) as producer:
            producer.send(topic, None, key=b"python", partition=0, timestamp=1_700_000_000_000).result(60)
        done = program(node.grpc, topic, "one", "two", "drei ÄÖÜ")
        assert done.returncode == 0, done.stderr
        read: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        with client.reader(topic, options=ReaderOptions(until_end=True)) as reader:
            ours = {(each.partition, each.offset): each for each in reader}
    assert len(read) == len(ours) == 4
    for each in read:
        message = ours[each["partition"], each["offset"]]
        assert each["timestamp_ms"] == message.timestamp
        assert (each["key"] or "").encode() == (message.key or b"")
        assert each["value"] == (None if message.value is None else message.value.decode())
        assert each["headers"] == {name: (value or b"").decode() for name, value in message.headers}
    sent = [each for each in read if each["key"] == program.__name__]
    assert [each["value"] for each in sent] == ["one", "two", "drei ÄÖÜ"]
    assert all(each["headers"] == {"language": language} for each in sent)


def test_they_print_the_nodes_answers(node: Node, program: Program) -> None:
    done = program(node.grpc, "no-such-topic", "x")
    assert done.returncode == 1
    assert "no topic 'no-such-topic'" in done.stderr
