"""A node tells the operator when a client asks for an unsupported feature: TLS, HTTP, consumer groups, compaction."""

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
)

from grpc_api.proto import topics_pb2
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from tests.support.clients import until
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
def test_a_tls_hello_is_named(node: Node) -> None:
    host, port = node.kafka.split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        client = "{}:{}".format(*sock.getsockname())
        with pytest.raises((ssl.SSLError, OSError)):
            ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")
    error = waits_for(node, "request.refused", client=client)["error"]
    assert error.startswith("a TLS hello, but this listener is plaintext")
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
