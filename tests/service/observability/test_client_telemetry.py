"""Metrics that Java's clients push (KIP-714), from the subscription to the line in the log."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_gateway.telemetry import PushedMetrics
from service.observability.client_telemetry import LINE_CHARACTERS, NAME, ClientTelemetryLog, metrics_of
from storage_tiers.errors import InvalidRecord
from tests.support import kafka_jars
from tests.support.clients import until
from tests.support.node import Node


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message of these numbered fields, which must be small."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3 | 1]) + struct.pack("<q", value)
        else:
            out += bytes([number << 3 | 2, len(value)]) + value
    return bytes(out)


def attribute(key: str, text: str) -> bytes:
    return message((1, key.encode()), (2, message((1, text.encode()))))


def data_of(*metrics: bytes) -> bytes:
    return message((1, message((1, b""), (2, message(*((2, metric) for metric in metrics))))))


GAUGE = message((1, b"lag"), (5, message((1, message((6, 41), (7, attribute("topic", "t")))), (1, message((6, -2))))))
DOUBLE = bytes([4 << 3 | 1]) + struct.pack("<d", 0.5)
SUM = message((1, b"sent"), (3, b"records"), (7, message((1, DOUBLE))))
HISTOGRAM = message((1, b"times"), (9, message((1, b""))))


def test_gauges_and_sums_are_read() -> None:
    assert metrics_of(data_of(GAUGE, SUM, HISTOGRAM)) == ({"lag{topic=t}": 41, "lag": -2, "sent": 0.5}, 1)
    assert metrics_of(b"") == ({}, 0)


@pytest.mark.parametrize("size", range(1, len(data_of(GAUGE))))
def test_truncated_metrics_are_refused_or_shorter(size: int) -> None:
    try:
        values, _ = metrics_of(data_of(GAUGE)[:size])
    except InvalidRecord as error:
        assert "not MetricsData" in str(error)
    else:
        assert values.keys() <= {"lag{topic=t}", "lag"}


@pytest.mark.parametrize("data", [b"\xff", b"\x0b", b"\x0a\x7f", b"\xff" * 11])
def test_bytes_that_are_not_metrics_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        metrics_of(data)


@pytest.mark.parametrize(
    ("reporters", "enabled"), [((), False), (("a.B",), False), ((NAME,), True), (("a.B", NAME), True)]
)
def test_only_named_followers_count(reporters: tuple[str, ...], enabled: bool) -> None:
    assert ClientTelemetryLog(lambda: reporters).enabled is enabled


def test_a_push_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidelog.client.metrics")
    ClientTelemetryLog(lambda: (NAME,)).receive(PushedMetrics(bytes(16), "me", data_of(SUM), True))
    line = json.loads(caplog.messages[0].removeprefix("client metrics "))
    assert line == {
        "client_id": "me",
        "client_instance_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "terminating": True,
        "metrics": {"sent": 0.5},
        "not_shown": 0,
    }


def test_a_push_of_many_metrics_is_logged_in_several_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidelog.client.metrics")
    many = [message((1, b"metric.%03d" % n), (7, message((1, DOUBLE)))) for n in range(100)]
    ClientTelemetryLog(lambda: (NAME,)).receive(PushedMetrics(bytes(16), "me", b"".join(map(data_of, many)), False))
    lines = [json.loads(each.removeprefix("client metrics "))["metrics"] for each in caplog.messages]
    assert len(lines) > 1
    assert [name for line in lines for name in line] == [f"metric.{n:03}" for n in range(100)]
    assert max(map(len, caplog.messages)) < 2 * LINE_CHARACTERS


def subscribe(node: Node, match: str) -> None:
    """Subscribes with Kafka's own tool to every metric of the clients that match, every 100 ms."""
    tool, bootstrap = "org.apache.kafka.tools.ClientMetricsCommand", ("--bootstrap-server", node.kafka)
    wanted = ("--name", "all", "--metrics", "*", "--interval", "100", "--match", match)
    kafka_jars.run_tool(tool, *bootstrap, "--alter", *wanted)
    assert kafka_jars.run_tool(tool, *bootstrap, "--list").split() == ["all"]


def test_a_java_producer_pushes_the_subscribed_metrics(tmp_path: Path) -> None:
    with Node(tmp_path, settings={"metric.reporters": NAME}) as node:
        subscribe(node, "client_id=perf.*")
        properties = ("--command-property", f"bootstrap.servers={node.kafka}", "client.id=perf-1")
        load = ("--topic", "t", "--num-records", "200", "--record-size", "100", "--throughput", "200")

        def has_said_its_last() -> bool:
            """A producer that ends before it learns of the subscription pushes nothing; on a busy machine a later
            producer does."""
            kafka_jars.run_tool("org.apache.kafka.tools.ProducerPerformance", *load, *properties)
            return any(push["terminating"] for push in pushes(node))

        until(has_said_its_last, "a producer has sent its last push")
    last = pushes(node)[-1]
    assert last["client_id"] == "perf-1"
    assert any(name.startswith("org.apache.kafka.producer.") for name in last["metrics"])


def test_librdkafka_pushes_the_subscribed_metrics(tmp_path: Path) -> None:
    """The subscription matches by software name, which only the connection knows."""
    with Node(tmp_path, settings={"metric.reporters": NAME}) as node:
        subscribe(node, "client_software_name=confluent-kafka-python")
        producer = Producer({"bootstrap.servers": node.kafka, "client.id": "rd", "enable.metrics.push": True})
        producer.produce("t", b"x")
        until(lambda: producer.poll(0.1) >= 0 and bool(pushes(node)), "the producer has pushed")
        assert producer.flush(30) == 0
    assert {push["client_id"] for push in pushes(node)} == {"rd"}
    assert any(name.startswith("org.apache.kafka.producer.") for push in pushes(node) for name in push["metrics"])


def pushes(node: Node) -> list[Any]:
    """The pushes in the node's log. If a push is a field of an event, its quotes are escaped."""
    text = node.output().replace('\\"', '"')
    return [json.loads(found) for found in re.findall(r'client metrics (\{.*"not_shown": \d+\})', text)]
