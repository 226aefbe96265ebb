"""The reporter of clients' metrics (KIP-714) that `metric.reporters` can name. It writes pushed metrics to the log.

    tidelog.ClientTelemetryLog

A line is JSON: the client, its instance, and the newest value of each metric and set of attributes. A push takes several lines
if needed, because the length of log lines is limited. This module parses the part of OpenTelemetry's MetricsData v1 that
clients send: gauges and sums. Metrics of other kinds (histograms) are counted, not shown.
https://github.com/open-telemetry/opentelemetry-proto, metrics/v1/metrics.proto
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator, Sequence

from kafka_gateway.telemetry import PushedMetrics
from storage_tiers.errors import InvalidRecord
from storage_tiers.uuids import uuid_text

NAME = "tidelog.ClientTelemetryLog"
#: The most metrics that are written per push. The others are only counted.
SHOWN = 500
#: The approximate number of characters that metrics may take in one line.
LINE_CHARACTERS = 1_400

log = logging.getLogger("tidelog.client.metrics")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _INT64 = struct.Struct("<d"), struct.Struct("<q")


class ClientTelemetryLog:
    """`reporters` returns the current value of `metric.reporters`."""

    def __init__(self, reporters: Callable[[], Sequence[str]]) -> None:
        self._reporters = reporters
        self.pushes = 0

    @property
    def enabled(self) -> bool:
        return NAME in self._reporters()

    def receive(self, pushed: PushedMetrics) -> None:
        values, others = metrics_of(pushed.otlp)
        self.pushes += 1
        for shown in _lines(list(values.items())[:SHOWN]):
            line: dict[str, object] = {
                "client_id": pushed.client_id,
                "client_instance_id": uuid_text(pushed.instance_id),
                "terminating": pushed.terminating,
                "metrics": shown,
                "not_shown": max(len(values) - SHOWN, 0) + others,
            }
            log.info("client metrics %s", json.dumps(line, ensure_ascii=False))


def _lines(metrics: list[tuple[str, float | int]]) -> Iterator[dict[str, float | int]]:
    """Yields the metrics of each line. A push without metrics gives one line without metrics."""
    line: dict[str, float | int] = {}
    characters = 0
    for name, value in metrics:
        size = len(name) + 24
        if line and characters + size > LINE_CHARACTERS:
            yield line
            line, characters = {}, 0
        line[name] = value
        characters += size
    yield line


def metrics_of(otlp: bytes) -> tuple[dict[str, float | int], int]:
    """(values by name and attributes, number of metrics of other kinds). Raises InvalidRecord if the bytes are not
    MetricsData."""
    values: dict[str, float | int] = {}
    others = 0
    try:
        for metric in _nested(otlp, 1, 2, 2):
            name, points = _metric(metric)
            others += points is None
            for point in points or ():
                _point(name, point, values)
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise InvalidRecord(f"the pushed metrics are not MetricsData: {error}") from None
    return values, others


def _nested(data: bytes, *path: int) -> Iterator[bytes]:
    """The messages at this path of field numbers."""
    for number, value in _fields(data):
        if number == path[0] and isinstance(value, bytes):
            if len(path) == 1:
                yield value
            else:
                yield from _nested(value, *path[1:])


def _metric(data: bytes) -> tuple[str, list[bytes] | None]:
    """A metric's name, and its data points if it is a gauge (5) or a sum (7)."""
    name, points = "", None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in (5, 7) and isinstance(value, bytes):
            points = list(_nested(value, 1))
    return name, points


def _point(name: str, data: bytes, values: dict[str, float | int]) -> None:
    attributes = []
    found: float | int | None = None
    for number, value in _fields(data):
        if number == 4 and isinstance(value, bytes):
            found = _DOUBLE.unpack(value)[0]
        elif number == 6 and isinstance(value, bytes):
            found = _INT64.unpack(value)[0]
        elif number == 7 and isinstance(value, bytes):
            key = next((each for n, each in _fields(value) if n == 1 and isinstance(each, bytes)), b"")
            text = next(_nested(value, 2, 1), b"")
            attributes.append(f"{key.decode()}={text.decode()}")
    if found is not None:
        values[name + ("{" + ",".join(attributes) + "}" if attributes else "")] = found


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of each field of a protobuf message. Values of fixed width are bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if not tag >> 3:
            raise ValueError("a field of number 0")
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes, where {len(data) - at} are left")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")
