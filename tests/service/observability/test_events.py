"""The events that a node logs: known work produces each event, and a failure that persists is logged once."""

from __future__ import annotations

import json
import logging
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from grpc_api.contract.topics import ResourceKind
from service.cli.client.config_requests import SET, ConfigChange, alter_configs
from tests.service.broker.support import TIERED, running, until
from tests.support.clients import until as wait_until
from tests.support.node import Node

#: All tests share one node and one topic, and follow them in order.
pytestmark = pytest.mark.xdist_group("events")

TOPIC = "said"
RECORDS = 30
#: Few records fill a segment, and the disk keeps none.
CONFIGS = {"segment.bytes": "1048576", "local.retention.ms": "100"}


class Log:
    """The events that a node has logged, as objects."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def of(self, event: str, /, **fields: object) -> list[dict[str, Any]]:
        said = [json.loads(line) for line in self._node.output().splitlines() if line.startswith("{")]
        return [e for e in said if e["event"] == event and fields.items() <= e.items()]

    def wait(self, event: str, /, **fields: object) -> dict[str, Any]:
        wait_until(lambda: bool(self.of(event, **fields)), f"{event} {fields}")
        return self.of(event, **fields)[0]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {"max.connections.per.ip": 20}
    with Node(tmp_path_factory.mktemp("events"), settings=settings, flags=["--log-format", "json"]) as started:
        yield started


@pytest.fixture(scope="module")
def log(node: Node) -> Log:
    return Log(node)


@pytest.fixture(scope="module")
def admin(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka, "log_level": 2})


def test_a_start_is_logged(node: Node, log: Log) -> None:
    starting = log.wait("node.starting", pid=node.pid)
    assert (starting["node_id"], starting["store"], starting["settings"]) == (1, node.store, 1)
    assert log.wait("recovery.finished")["partitions"] == 0
    listening = log.wait("node.listening")
    assert (listening["grpc"], listening["http"]) == (node.grpc, node.http)
    assert listening["kafka"] == listening["advertised"] == f"PLAINTEXT://{node.kafka}"
    assert log.wait("store.opened")["incarnation"] == 1
    assert not [line for line in node.output().splitlines() if not line.startswith("{")], "every line is a JSON object"


def test_a_topic_is_logged_from_its_creation_to_the_bucket(node: Node, log: Log, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result()
    created = log.wait("topic.created", topic=TOPIC)
    assert (created["partitions"], created["replication_factor"]) == (1, 1)
    producer = Producer({"bootstrap.servers": node.kafka, "log_level": 2, "linger.ms": 0, "batch.num.messages": 1})
    for _ in range(RECORDS):
        producer.produce(TOPIC, bytes(100_000), partition=0)
        assert producer.flush(30) == 0
    offloaded = log.wait("offload.finished", topic=TOPIC, partition=0, base_offset=0)
    assert 0 < offloaded["end_offset"] < RECORDS and offloaded["ms"] >= 0
    assert offloaded["bytes"] > offloaded["end_offset"] * 100_000
    committed = log.wait("manifest.committed", topic=TOPIC, partition=0, commit=1)
    assert committed["end_offset"] == offloaded["end_offset"] and committed["log_start"] == 0
    evicted = log.wait("segment.evicted", topic=TOPIC, partition=0, base_offset=0)
    assert (evicted["end_offset"], evicted["bytes"]) == (offloaded["end_offset"], offloaded["bytes"])
    said = node.output().count("\n")
    for _ in range(200):
        producer.produce(TOPIC, b"small", partition=0)
        assert producer.flush(30) == 0
    assert node.output().count("\n") < said + 20, "no event per request; one or two segments may still be in progress"


def test_changes_by_an_administrator_are_logged(node: Node, log: Log, admin: AdminClient) -> None:
    admin.create_partitions([NewPartitions(TOPIC, 2)])[TOPIC].result()
    assert log.wait("topic.partitions_added", topic=TOPIC)["partitions"] == 2
    alter(admin, ResourceType.TOPIC, TOPIC, "retention.ms", "-1")
    changed = log.wait("config.changed", name=TOPIC)
    assert (changed["resource"], changed["key"], changed["value"], changed["operation"]) == (
        "TOPIC",
        "retention.ms",
        "-1",
        "SET",
    )
    with pytest.raises(KafkaException):
        alter(admin, ResourceType.TOPIC, TOPIC, "retention.ms", "soon")
    assert "soon" in log.wait("config.refused", name=TOPIC)["error"]
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("not a name", 1, 1)])["not a name"].result()
    assert log.wait("topic.refused", topic="not a name")["asked"] == "create"


def test_a_password_is_never_printed(node: Node, log: Log, admin: AdminClient) -> None:
    with pytest.raises(KafkaException):
        alter(admin, ResourceType.BROKER, "1", "ssl.keystore.password", "hunter2")
    assert "[hidden]" in log.wait("config.refused", resource="BROKER")["error"]
    assert "hunter2" not in node.output()


def test_a_loggers_level_is_changed_at_run_time(node: Node, log: Log, admin: AdminClient) -> None:
    logger = "service.broker.api.topic_service"
    alter_configs(
        node.kafka, ResourceKind.BROKER_LOGGER, "1", [ConfigChange(logger, SET, "ERROR")], validate_only=False
    )
    assert log.wait("logger.changed", name=logger)["to"] == "ERROR"
    admin.create_topics([NewTopic("quiet", 1, 1)])["quiet"].result()
    alter_configs(node.kafka, ResourceKind.BROKER_LOGGER, "1", [ConfigChange(logger, SET, "INFO")], validate_only=False)
    admin.create_topics([NewTopic("loud", 1, 1)])["loud"].result()
    log.wait("topic.created", topic="loud")
    assert not log.of("topic.created", topic="quiet")


def test_an_invalid_frame_is_logged(node: Node, log: Log) -> None:
    with connect(node) as sock:
        sock.sendall(struct.pack(">i", -5))
        assert sock.recv(1) == b""
        client = "{}:{}".format(*sock.getsockname())
    assert log.wait("request.refused", server="kafka", client=client)["error"]
    assert log.wait("connection.closed", client=client)["reason"]


def test_connections_beyond_the_bound_are_logged(node: Node, log: Log) -> None:
    held = [connect(node) for _ in range(21)]
    try:
        assert log.wait("connection.refused")["bound"] == "max.connections.per.ip"
    finally:
        for sock in held:
            sock.close()


def test_the_end_of_a_topic_and_of_the_node_is_logged(node: Node, log: Log, admin: AdminClient) -> None:
    wait_until(lambda: _deleted(admin), "the connections of before have left")
    assert log.wait("topic.deleted", topic=TOPIC)["partitions"] == 2
    assert log.wait("topic.deleted_in_store", topic=TOPIC)["topic_id"] == log.of("topic.deleted")[0]["topic_id"]
    assert node.stop() == 0
    assert log.of("node.signalled")[0]["signal"] == "SIGTERM"
    assert log.of("node.stopping") and log.of("node.stopped")[-1]["code"] == 0


def test_a_start_that_fails_is_an_event_too(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    failing = Node(tmp_path, flags=["--log-format", "json"])
    failing.kafka = f"127.0.0.1:{taken.getsockname()[1]}"
    failing.spawn()
    try:
        assert failing.wait() == 1
    finally:
        failing.kill()
        taken.close()
    assert "choose another address in --listeners" in Log(failing).of("node.not_started")[0]["error"]


async def test_an_unreachable_store_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as node:
        await until(lambda: "store.opened" in said(caplog))
        await node.create("t", 3, configs=TIERED)
        node.store.down = True
        asked = len(node.store.calls)
        for number in range(120):
            await node.append("t", b"%03d" % number * 50, partition=number % 3)
        await until(lambda: len(node.store.calls) > asked + 12)
        node.store.down = False
        await until(lambda: "store.back" in said(caplog))
        await until(lambda: all("offload.finished" in said(caplog, partition=number) for number in range(3)))
    names = said(caplog)
    assert (names.count("store.failing"), names.count("store.back")) == (1, 1)
    assert "partition.work_failed" not in names, "a failure of the store is not a partition's"


@pytest.mark.parametrize("configs", [{}, TIERED], ids=["local", "tiered"])
async def test_a_log_that_lost_flushed_records_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, configs: dict[str, str]
) -> None:
    async with running(tmp_path) as node:
        for topic in ("whole", "cut"):
            await node.create(topic, configs=configs)
            for _ in range(3):
                await node.append(topic, b"x")
    newest = max((tmp_path / "cut-0").glob("*.log"))
    newest.write_bytes(b"")
    caplog.set_level(logging.INFO)
    async with running(tmp_path):
        pass
    found = [record.fields for record in caplog.records if getattr(record, "event", "") == "log.shrunk"]  # type: ignore[attr-defined]
    assert [(each["topic"], each["flushed_end"]) for each in found] == [("cut", 3)]
    assert found[0]["local_end"] == int(newest.stem)


def said(caplog: pytest.LogCaptureFixture, **fields: object) -> list[str]:
    events = [record for record in caplog.records if hasattr(record, "event")]
    return [e.event for e in events if fields.items() <= e.fields.items()]  # type: ignore[attr-defined]


def alter(admin: AdminClient, kind: ResourceType, name: str, key: str, value: str) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def connect(node: Node) -> socket.socket:
    host, _, port = node.kafka.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def _deleted(admin: AdminClient) -> bool:
    try:
        admin.delete_topics([TOPIC], request_timeout=5)[TOPIC].result()
    except KafkaException:
        return False
    return True
