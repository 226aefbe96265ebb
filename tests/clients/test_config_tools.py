"""Configs changed by the tools that people use: Kafka's own kafka-configs, and librdkafka's admin client."""

from __future__ import annotations

import re
import subprocess
import time
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
    ConfigSource,
    ResourceType,
)

from tests.support.clients import create
from tests.support.kafka_jars import class_path
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("config-tools")
COMMANDS = Path(__file__).with_name("ConfigCommands.java")
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), store="none") as running:
        yield running


def kafka_configs(node: Node, *lines: str) -> list[str]:
    """What `kafka-configs` prints for each line of arguments."""
    lines = tuple(f"--bootstrap-server {node.kafka} {line}" for line in lines)
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(), str(COMMANDS)]
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=120, check=True
    )
    printed = re.split(r"^--- .*\n", done.stdout, flags=re.MULTILINE)
    assert len(printed) == len(lines) + 1, done.stdout + done.stderr
    return printed[:-1]


def test_kafkas_own_tool_describes_and_alters_topics_brokers_and_loggers(node: Node) -> None:
    create(node, "tooled", 1, {})
    topic, brokers = "--entity-type topics --entity-name tooled", "--entity-type brokers"
    loggers = "--entity-type broker-loggers --entity-name 1"
    printed = kafka_configs(
        node,
        f"{topic} --alter --add-config cleanup.policy=[compact,delete],segment.ms=60000",
        f"{topic} --describe",
        f"{topic} --alter --delete-config segment.ms",
        f"{topic} --describe --all",
        f"{topic} --alter --add-config segment.bytes=5",
        f"{brokers} --entity-default --alter --add-config log.retention.ms=5000",
        f"{brokers} --entity-name 1 --alter --add-config log.retention.ms=6000",
        f"{brokers} --describe",
        f"{loggers} --alter --add-config root=DEBUG",
        f"{loggers} --describe",
    )
    assert "cleanup.policy=compact,delete sensitive=false" in printed[1]
    assert "{DYNAMIC_TOPIC_CONFIG:segment.ms=60000}" in printed[1]
    assert "segment.ms=604800000 sensitive=false synonyms={}" in printed[3]
    assert len(re.findall(r"^ +[a-z0-9.]+=", printed[3], re.MULTILINE)) == 35
    assert "Invalid value 5 for configuration segment.bytes: Value must be at least 1048576" in printed[4]
    assert "it failed" in printed[4]
    both = "DYNAMIC_BROKER_CONFIG:log.retention.ms=6000, DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=5000"
    assert both in printed[7]
    assert "root=DEBUG" in printed[9]
    assert not any("it failed" in text for place, text in enumerate(printed) if place != 4)


def altered(node: Node, kind: ResourceType, name: str, **values: str | None) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=DELETE if value is None else SET)
        for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)


def described(node: Node, kind: ResourceType, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    found = admin.describe_configs([resource])[resource].result(30)
    assert isinstance(found, dict)
    return found


def test_librdkafka_alters_topics_and_brokers_and_reads_it_back(node: Node) -> None:
    create(node, "rd", 1, {})
    altered(node, ResourceType.BROKER, "1", message_max_bytes="20000")
    entry = described(node, ResourceType.TOPIC, "rd")["max.message.bytes"]
    assert (entry.value, entry.source) == ("20000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    assert [(s.name, s.value) for s in entry.synonyms.values()] == [("message.max.bytes", "1048588")]
    altered(node, ResourceType.TOPIC, "rd", max_message_bytes="30000")
    assert described(node, ResourceType.TOPIC, "rd")["max.message.bytes"].value == "30000"
    altered(node, ResourceType.TOPIC, "rd", max_message_bytes=None)
    altered(node, ResourceType.BROKER, "1", message_max_bytes=None)
    assert described(node, ResourceType.TOPIC, "rd")["max.message.bytes"].value == "1048588"


def test_the_older_request_replaces_all_that_was_set(node: Node) -> None:
    create(node, "legacy", 1, {"retention.ms": "5000", "segment.ms": "6000"})
    admin = AdminClient({"bootstrap.servers": node.kafka})
    resource = ConfigResource(ResourceType.TOPIC, "legacy", set_config={"segment.ms": "7000"})
    admin.alter_configs([resource])[resource].result(30)
    own = {
        name: entry.value
        for name, entry in described(node, ResourceType.TOPIC, "legacy").items()
        if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    }
    assert own == {"segment.ms": "7000"}


def test_a_live_change_refuses_the_next_record_and_says_why(node: Node) -> None:
    create(node, "live", 1, {})
    assert delivery(node, "live", b"x" * 5000) is None
    altered(node, ResourceType.TOPIC, "live", max_message_bytes="1000")
    assert delivery(node, "live", b"x" * 5000) == "MSG_SIZE_TOO_LARGE"
    altered(node, ResourceType.TOPIC, "live", max_message_bytes=None, message_timestamp_after_max_ms="1000")
    assert delivery(node, "live", b"x", timestamp=int(time.time() * 1000) + 60_000) == "INVALID_TIMESTAMP"
    with pytest.raises(KafkaException, match="Value must be at least 0"):
        altered(node, ResourceType.TOPIC, "live", message_timestamp_after_max_ms="-1")


def delivery(node: Node, topic: str, value: bytes, **fields: Any) -> str | None:
    """The name of the error that the record met."""
    met: list[str | None] = []
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: met.append(error.name() if error else None), **fields)
    assert producer.flush(30) == 0
    return met[0]
