"""`tidelog serve --brokers 3` as its clients see it: one bootstrap port, whichever broker is away, and one command's life."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from service.cli.main import app
from tests.faults.clients import until
from tests.faults.processes import tier_process
from tests.support.node import Node, NodeFailed
from tests.support.ports import consecutive_ports
from tests.support.processes import children, descendants, is_alive, state_of

BROKERS = (1, 2, 3)
PARTITIONS = 6
#: The node's own three ports, and two or three of each broker.
PORTS = 3 + 3 * len(BROKERS)


def node_of(directory: Path, *flags: str, kind: type[Node] = Node) -> Node:
    """A node with free ports after its own."""
    ports = consecutive_ports(PORTS)
    node = kind(directory, store="none", flags=["--brokers", str(len(BROKERS)), *flags])
    node.kafka, node.grpc, node.http = (f"127.0.0.1:{port}" for port in ports[:3])
    return node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node_of(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def endpoints(node: Node, broker: int) -> dict[str, Any]:
    """The endpoints that this broker has announced."""
    directory = node.data_dir if broker == 1 else node.data_dir / "brokers" / str(broker)
    found: dict[str, Any] = json.loads((directory / "broker-endpoints.json").read_text())
    return found


def admin(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


def leaders(node: Node, topic: str) -> list[int]:
    found = admin(node).list_topics(topic, timeout=30).topics[topic].partitions
    return sorted(partition.leader for partition in found.values())


def wait_for_all(node: Node, topic: str) -> None:
    until(lambda: leaders(node, topic) == [1, 1, 2, 2, 3, 3], "all brokers lead")
    until(lambda: node.readyz() == 200, "all brokers are ready")


def create(node: Node, topic: str) -> None:
    client = admin(node)
    client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    wait_for_all(node, topic)


def produce(node: Node, topic: str, numbers: range, partitions: tuple[int, ...] = tuple(range(PARTITIONS))) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": node.kafka, "acks": "all"})
    for number in numbers:
        partition = partitions[number % len(partitions)]
        producer.produce(topic, b"%d" % number, partition=partition, on_delivery=lambda e, _: failed.append(e))
    assert producer.flush(60) == 0
    assert set(failed) == {None}


def consumed(node: Node, topic: str, count: int) -> set[int]:
    configs = {"bootstrap.servers": node.kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(configs)
    found: set[int] = set()

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.add(int(message.value() or b""))
        return len(found) == count

    try:
        consumer.subscribe([topic])
        until(read, f"{count} records")
    finally:
        consumer.close()
    return found


def test_records_go_to_all_brokers_by_one_port(node: Node) -> None:
    create(node, "spread")
    metadata = admin(node).list_topics(timeout=30)
    own = {broker: f"{found.host}:{found.port}" for broker, found in metadata.brokers.items()}
    assert own == {broker: next(iter(endpoints(node, broker)["kafka"].values())) for broker in BROKERS}
    assert node.kafka not in own.values()
    produce(node, "spread", range(300))
    assert consumed(node, "spread", 300) == set(range(300))
    assert {path.name for path in (node.data_dir / "brokers").iterdir()} == {"2", "3"}


@pytest.mark.parametrize("broker", BROKERS)
def test_a_killed_broker_returns_while_the_others_serve(node: Node, broker: int) -> None:
    topic = f"killed-{broker}"
    create(node, topic)
    found = admin(node).list_topics(topic, timeout=30).topics[topic].partitions
    others = tuple(number for number, partition in found.items() if partition.leader != broker)
    before = endpoints(node, broker)["pid"]
    os.kill(before, signal.SIGKILL)
    produce(node, topic, range(100), others)
    until(lambda: endpoints(node, broker)["pid"] != before, "the broker is started again")
    assert f'tidelog_broker_restarts_total{{broker="{broker}"}} 1\n' in node.get("/metrics")[1]
    wait_for_all(node, topic)
    produce(node, topic, range(100, 200))
    assert consumed(node, topic, 200) == set(range(200))


@pytest.mark.parametrize("broker", BROKERS)
def test_the_bootstrap_port_answers_while_a_broker_is_stopped(node: Node, broker: int) -> None:
    topic = f"paused-{broker}"
    create(node, topic)
    pid = endpoints(node, broker)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(10):
            assert topic in admin(node).list_topics(timeout=30).topics
        assert node.readyz() == 503
        assert f'tidelog_broker_up{{broker="{broker}"}} 0\n' in node.get("/metrics")[1]
        assert json.loads(node.get("/readyz")[1])["brokers"][str(broker)] == {"ready": False, "answers": False}
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for_all(node, topic)


def test_the_pages_show_all_brokers(node: Node) -> None:
    status, body = node.get("/readyz")
    assert (status, list(json.loads(body)["brokers"])) == (200, ["1", "2", "3"])
    _, page = node.get("/metrics")
    families = {each.name: each for each in text_string_to_metric_families(page)}
    assert {each.labels["broker"]: each.value for each in families["tidelog_ready"].samples} == dict.fromkeys("123", 1)
    assert {each.labels["broker"]: each.value for each in families["tidelog_broker_up"].samples} == dict.fromkeys(
        "123", 1
    )
    controller = "kafka_controller_kafkacontroller_"
    assert [each.value for each in families[controller + "activecontrollercount"].samples] == [1, 0, 0]
    assert [each.value for each in families[controller + "activebrokercount"].samples] == [3, 3, 3]
    assert [each.value for each in families[controller + "fencedbrokercount"].samples] == [0, 0, 0]
    assert list(json.loads(node.get("/stats")[1])) == ["1", "2", "3"]
    assert node.get("/healthz") == (200, "ok\n")
    assert node.get("/other")[0] == 404


def test_every_event_of_a_broker_names_it(node: Node) -> None:
    lines = node.output().splitlines()
    starts = [line for line in lines if " node.starting " in line]
    assert {line.rpartition(" node=")[2] for line in starts} == {"1", "2", "3"}
    assert not [line for line in lines if " supervisor." in line and " node=" in line]


def test_the_pages_survive_strangers(node: Node) -> None:
    host, port = node.http.split(":")
    for sent in (b"\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\xff \xff\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            try:
                while stranger.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert node.readyz() == 200
    assert "Traceback" not in node.output()


def test_a_stop_ends_all_and_a_start_finds_all(tmp_path: Path) -> None:
    with node_of(tmp_path) as node:
        create(node, "kept")
        produce(node, "kept", range(60))
        pids = [endpoints(node, broker)["pid"] for broker in BROKERS]
        assert node.stop() == 0
        assert not any(map(is_alive, pids))
        output = node.output()
        assert output.count("node.stopped code=0") == 3
        assert "controller.stop_unconfirmed" not in output
        assert "supervisor.broker_killed" not in output
        node.flags[1] = "2"
        with pytest.raises(NodeFailed, match=r"broker 3 holds partitions in .*start with --brokers 3"):
            node.start()
        node.flags[1] = "3"
        node.start()
        assert consumed(node, "kept", 60) == set(range(60))
        assert node.output().count("recovery.started partitions=0 clean=true") == 0


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    """Neither the brokers nor their shared tier process remain, not even if they were stopped."""
    node = node_of(tmp_path)
    node.store = f"file://{tmp_path / 'store'}"
    with node:
        until(lambda: tier_process(node.pid) is not None, "the tier process runs")
        tier = tier_process(node.pid)
        assert tier is not None
        pids = descendants(node.pid)
        assert len(pids) == len(BROKERS) + 1
        for stopped in (endpoints(node, 3)["pid"], tier):
            os.kill(stopped, signal.SIGSTOP)
        node.kill()
        until(lambda: not any(map(is_alive, pids)), "all have ended")
        node.start()


class FirstProcess(Node):
    """A node to which the kernel leaves the orphans of its processes, as PID 1 gets them. It has one such orphan."""

    def command(self) -> list[str]:
        adopt = (
            "import ctypes, os, subprocess, sys; ctypes.CDLL(None).prctl(36, 1);"
            " subprocess.run(['sh', '-c', 'sleep 600 & true'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
            " os.execv(sys.executable, sys.argv[1:])"
        )
        return [sys.executable, "-c", adopt, *super().command()]


def test_the_supervisor_reaps_orphans(tmp_path: Path) -> None:
    node = node_of(tmp_path, kind=FirstProcess)
    with node:
        (orphan,) = children(node.pid) - {endpoints(node, broker)["pid"] for broker in BROKERS}
        os.kill(orphan, signal.SIGKILL)
        until(lambda: not state_of(orphan), "the orphan has ended, and is no zombie")
        assert "Z" not in map(state_of, children(node.pid))
        assert node.stop() == 0


def test_a_stop_during_the_start_ends_all(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    with node:
        node.kill()
        began = node.output().count("supervisor.broker_started")
        node.spawn()
        until(lambda: node.output().count("supervisor.broker_started") == began + 3, "all brokers are started")
        pids = children(node.pid)
        assert len(pids) == 3
        assert node.stop() == 0
        assert not any(map(is_alive, pids))


def test_the_directory_of_one_broker_grows_into_several(tmp_path: Path) -> None:
    node = node_of(tmp_path)
    node.store, node.flags = f"file://{tmp_path / 'store'}", []
    with node:
        client = admin(node)
        client.create_topics([NewTopic("old", 2, 1)])["old"].result(30)
        produce(node, "old", range(20), (0, 1))
        assert node.stop() == 0
        node.flags = ["--brokers", "3"]
        node.start()
        assert leaders(node, "old") == [1, 1]
        create(node, "new")
        assert consumed(node, "old", 20) == set(range(20))
        sealed = CliRunner().invoke(app, ["topic", "seal", "new", "--wait", "-b", node.kafka])
        assert sealed.exit_code == 0, sealed.output
        assert node.stop() == 0


def test_a_broker_that_cannot_run_ends_all_with_its_reason(tmp_path: Path) -> None:
    node = node_of(tmp_path, "--set", "tidelog.disk.watermark.slow=7")
    with pytest.raises(NodeFailed, match=r"tidelog\.disk\.watermark\.slow"):
        node.start()
    assert "supervisor.broker_cannot_run" in node.output()
    assert "supervisor.broker_ended" not in node.output()
