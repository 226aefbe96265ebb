"""Every message that kio writes has the shape that is checked, and no lie about a count or a length passes."""

from __future__ import annotations

import dataclasses
import datetime
import io
import re
import struct
import typing
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from kafka_gateway.hot_parse import Malformed
from kafka_gateway.message_shape import check
from kafka_gateway.messages import MESSAGE_BYTES, messages_of
from kafka_gateway.registry import APIS
from tests.kafka_gateway.kio_wire import entity, message

HAND_WRITTEN = {"Produce", "Fetch"}
VERSIONS = [
    (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower(), version)
    for api in APIS
    if api.name not in HAND_WRITTEN
    for version in range(api.served_from, api.highest + 1)
]
VALUES: dict[str, Any] = {
    "bool": True,
    "int8": 1,
    "int16": 2,
    "uint16": 3,
    "int32": 4,
    "int64": 5,
    "float64": 6.5,
    "string": "text",
    "bytes": b"some bytes",
    "uuid": uuid.UUID(int=7),
    "timedelta_i32": datetime.timedelta(seconds=8),
    "timedelta_i64": datetime.timedelta(seconds=9),
}


def filled(kind: Any) -> dict[str, Any]:
    """Two elements in every array, a value in every field."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        inner = next((a for a in (field.type, *typing.get_args(field.type)) if dataclasses.is_dataclass(a)), None)
        nested = [a for a in typing.get_args(field.type) if typing.get_origin(a) is tuple] or [field.type]
        is_array = typing.get_origin(nested[0]) is tuple
        if inner is None and is_array:
            inner = next((a for a in typing.get_args(nested[0]) if dataclasses.is_dataclass(a)), None)
        value = filled(inner) if inner is not None else VALUES[field.metadata["kafka_type"]]
        values[field.name] = [value, value] if is_array else value
    return values


def body_of(schema: str, version: int) -> bytes:
    kind = message(schema, version, "request")
    out = io.BytesIO()
    entity_writer(kind)(out, entity(kind, filled(kind)))
    return out.getvalue()


@pytest.mark.parametrize(("schema", "version"), VERSIONS)
def test_what_kio_writes_is_well_shaped_and_every_truncation_is_not(schema: str, version: int) -> None:
    kind, body = message(schema, version, "request"), body_of(schema, version)
    check(kind, body)
    check(kind, body + b"trailing")
    for end in range(len(body)):
        with pytest.raises(Malformed):
            check(kind, body[:end])


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 1000), st.binary(min_size=1, max_size=8))
def test_whatever_passes_is_read_or_malformed(version: tuple[str, int], place: int, damage: bytes) -> None:
    body = bytearray(body_of(*version))
    place %= len(body) + 1
    body[place : place + len(damage)] = damage
    try:
        messages_of(*version).read(bytes(body))
    except Malformed as error:
        assert str(error)


@pytest.mark.parametrize("count", [2**31 - 1, 1 << 28, 5])
def test_a_count_that_lies_is_malformed(count: int) -> None:
    with pytest.raises(Malformed, match=f"an array of {count} elements"):
        messages_of("metadata", 1).read(struct.pack(">i", count))
    compact = bytearray()
    rest = count + 1
    while rest >= 0x80:
        compact.append(rest & 0x7F | 0x80)
        rest >>= 7
    with pytest.raises(Malformed, match=f"an array of {count} elements"):
        messages_of("metadata", 9).read(bytes([*compact, rest]))


@pytest.mark.parametrize("version", [1, 4, 6])
def test_null_stands_only_where_it_may(version: int) -> None:
    flexible = version >= 4
    with pytest.raises(Malformed, match="a null array"):
        messages_of("delete_topics", version).read(b"\0\0\0\0\0\0" if flexible else b"\xff\xff\xff\xff\0\0\0\0")
    assert messages_of("metadata", 9).read(b"\0\1\0\0\0").topics is None


def test_a_message_that_would_hold_the_node_up_is_not_read() -> None:
    names = (MESSAGE_BYTES - 4) // 2
    with pytest.raises(Malformed, match="at most 4194304 are taken"):
        messages_of("metadata", 1).read(struct.pack(">i", names + 1) + b"\0\0" * (names + 1))
