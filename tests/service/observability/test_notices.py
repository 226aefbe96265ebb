"""What a node tells the operator whose client asks for an unsupported feature: TLS, HTTP, consumer groups, compaction."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from grpc_api.proto import topics_pb2
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from tests.service.cli.support import tidelog
from tests.support.clients import create, until
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("notices")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("notices"), flags=["--log-format", "json"]) as started:
        yield started


def said(node: Node, event: str, /, **fields: object) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in node.output().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event and fields.items() <= line.items()]


def waits_for(node: Node, event: str, /, **fields: object) -> dict[str, Any]:
    until(lambda: bool(said(node, event, **fields)), f"{event} {fields}")
    return said(node, event, **fields)[0]


# --- other protocols ---------------------------------------------------------------------------------------------------
def test_a_tls_hello_is_called_one(node: Node) -> None:
    host, port = node.kafka.split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        client = "{}:{}".format(*sock.getsockname())
        with pytest.raises((ssl.SSLError, OSError)):
            ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
    error = waits_for(node, "request.refused", client=client)["error"]
    assert error.startswith("a TLS hello, and this listener speaks plain text")
    assert error in waits_for(node, "connection.closed", client=client)["reason"]


def test_a_kafka_client_with_tls_is_recognised(node: Node) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, "security.protocol": "ssl", "log_level": 0})
    before = len(said(node, "request.refused"))
    until(lambda: admin.poll(0.05) >= 0 and len(said(node, "request.refused")) > before, "the client has tried")
    assert "a TLS hello" in said(node, "request.refused")[before]["error"]


def test_http_and_grpc_are_named_in_the_log(node: Node) -> None:
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://{node.kafka}/metrics", timeout=10)
    until(lambda: any("an HTTP request" in line["error"] for line in said(node, "request.refused")), "HTTP is named")
    with grpc.insecure_channel(node.kafka) as channel, pytest.raises(grpc.RpcError):
        TopicsStub(channel).Seal(topics_pb2.SealRequest(topic="t"), timeout=10)
    until(lambda: any("an HTTP/2 preface" in line["error"] for line in said(node, "request.refused")), "gRPC is named")


# --- compaction --------------------------------------------------------------------------------------------------------
def alter(node: Node, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_a_compacted_topic_causes_a_warning(node: Node) -> None:
    create(node, "compacted", 1, {"cleanup.policy": "compact"})
    create(node, "plain", 1, {})
    line = waits_for(node, "topic.not_compacted", topic="compacted")
    assert (line["level"], line["cleanup_policy"]) == ("WARN", "compact")
    assert (
        line["effect"] == "segments on the local disk are compacted, those in the bucket are not: each is kept for ever"
    )
    alter(node, "plain", "retention.ms", "-1")
    assert not said(node, "topic.not_compacted", topic="plain")
    alter(node, "plain", "cleanup.policy", "compact,delete")
    line = waits_for(node, "topic.not_compacted", topic="plain")
    assert line["effect"] == (
        "segments on the local disk are compacted, those in the bucket are not: each is kept until retention removes it"
    )
    alter(node, "plain", "cleanup.policy", "delete")
    with grpc.insecure_channel(node.grpc) as channel:
        compact = topics_pb2.NewTopicConfig(name="cleanup.policy", value="compact")
        new = topics_pb2.NewTopic(name="by-grpc", configs=[compact])
        TopicsStub(channel).Create(topics_pb2.CreateTopicsRequest(topics=[new]), timeout=30)
    waits_for(node, "topic.not_compacted", topic="by-grpc")
    assert len(said(node, "topic.not_compacted", topic="plain")) == 1


def test_the_command_prints_it_too(node: Node) -> None:
    at = ("-b", node.kafka)
    created = tidelog("topic", "create", "c", "-c", "cleanup.policy=compact", *at)
    assert (created.code, created.out) == (0, "created c\n")
    assert created.err == (
        "tidelog: cleanup.policy=compact: segments on the node's disk are compacted, those in a bucket are not: each is kept "
        "for ever\n"
    )
    altered = tidelog("topic", "alter", "c", "-c", "cleanup.policy=compact,delete", *at)
    assert altered.err.endswith("each is kept until retention removes it\n")
    assert tidelog("topic", "alter", "c", "-c", "cleanup.policy=delete", *at).err == ""
