"""Configs that librdkafka's admin client changes, and their effect on the next request. `test_tools.py` covers Kafka's
tools."""

from __future__ import annotations

import time
from collections.abc import Iterator
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
from tests.support.node import Node

SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node"), store="none") as running:
        yield running


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


def test_librdkafka_alters_configs_of_topics_and_brokers_and_reads_them_back(node: Node) -> None:
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
    """The name of the record's delivery error, if any."""
    met: list[str | None] = []
    producer = Producer({"bootstrap.servers": node.kafka, "linger.ms": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: met.append(error.name() if error else None), **fields)
    assert producer.flush(30) == 0
    return met[0]
