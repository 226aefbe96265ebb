"""Every message that kio writes is read as kio reads it, and no false count or length is accepted."""

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
from kio.serial import entity_reader, entity_writer

from kafka_gateway.hot_parse import TAGS, Malformed
from kafka_gateway.message_reader import ROWS_A_REQUEST, at_once, steps_of
from kafka_gateway.messages import MESSAGE_BYTES, messages_of
from kafka_gateway.registry import APIS
from tests.kafka_gateway.kio_frames import entity, message

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
    """A message with two elements in every array and a value in every field."""
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
def test_messages_written_by_kio_are_read_and_every_truncation_is_malformed(schema: str, version: int) -> None:
    kind, body = message(schema, version, "request"), body_of(schema, version)
    messages = messages_of(schema, version)
    same(messages.read(body), entity_reader(kind)(body, 0)[0])
    same(messages.read(body + b"trailing"), messages.read(body))
    for end in range(len(body)):
        with pytest.raises(Malformed):
            messages.read(body[:end])


def same(read: Any, expected: Any) -> None:
    """Compares a message, field by field, with the one that kio or the same reader has read."""
    if isinstance(expected, tuple) and not hasattr(expected, "_fields"):
        assert len(read) == len(expected)
        for one, other in zip(read, expected, strict=True):
            same(one, other)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            same(getattr(read, field.name), getattr(expected, field.name))
    else:
        assert read == expected


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(VERSIONS), st.integers(0, 1000), st.binary(min_size=1, max_size=8))
def test_any_bytes_are_read_or_malformed(version: tuple[str, int], place: int, damage: bytes) -> None:
    body = bytearray(body_of(*version))
    place %= len(body) + 1
    body[place : place + len(damage)] = damage
    try:
        messages_of(*version).read(bytes(body))
    except Malformed as error:
        assert str(error)


@pytest.mark.parametrize("count", [2**31 - 1, 1 << 28, 5])
def test_a_wrong_count_is_malformed(count: int) -> None:
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
def test_null_is_accepted_only_in_nullable_fields(version: int) -> None:
    flexible = version >= 4
    with pytest.raises(Malformed, match="a null array"):
        messages_of("delete_topics", version).read(b"\0\0\0\0\0\0" if flexible else b"\xff\xff\xff\xff\0\0\0\0")
    assert messages_of("metadata", 9).read(b"\0\1\0\0\0").topics is None


def test_a_message_of_too_many_bytes_is_not_read() -> None:
    names = (MESSAGE_BYTES - 4) // 2
    with pytest.raises(Malformed, match="at most 4194304 are accepted"):
        messages_of("metadata", 1).read(struct.pack(">i", names + 1) + b"\0\0" * (names + 1))


class Hurried:
    """A turn whose time is always used up."""

    is_over = True


def read_in_steps(schema: str, version: int, body: bytes) -> tuple[int, Any, bool]:
    """Returns the number of yields, the request, and whether it has too many rows."""
    steps, count = messages_of(schema, version).reading(body, Hurried()), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request, is_full = end.value
            return count, request, is_full
        count += 1


def test_a_long_message_yields_while_it_is_read() -> None:
    frame = struct.pack(">i", 1000) + b"\0\1a" * 1000
    yields, request, is_full = read_in_steps("metadata", 1, frame)
    assert (yields >= 50, len(request.topics), is_full) == (True, 1000, False)


def test_only_the_first_of_too_many_rows_are_read() -> None:
    count = ROWS_A_REQUEST + 1
    _, request, is_full = read_in_steps("delete_topics", 1, struct.pack(">i", count) + b"\0\1a" * count + b"\0\0\0\1")
    assert (len(request.topic_names), request.timeout, is_full) == (ROWS_A_REQUEST, None, True)
    # Nested rows count too.
    topic = b"\0\1t" + struct.pack(">i", count) + b"\0\0\0\0" * count
    _, request, is_full = read_in_steps("describe_log_dirs", 1, struct.pack(">i", 1) + topic)
    assert (request.topics[0].topic, len(request.topics[0].partitions), is_full) == ("t", ROWS_A_REQUEST - 1, True)


#: The tagged fields of an entity with one unknown field: number 100, three bytes.
TOMORROW = b"\x01\x64\x03abc"
FLEXIBLE = [each for each in VERSIONS if message(*each, "request").__flexible__ and body_of(*each)[-1] == 0]


@pytest.mark.parametrize(("schema", "version"), FLEXIBLE)
def test_a_tagged_field_of_tomorrow_is_ignored(schema: str, version: int) -> None:
    body = body_of(schema, version)
    messages = messages_of(schema, version)
    assert messages.read(body[:-1] + TOMORROW) == messages.read(body)
    assert messages.read(body[:-1] + TOMORROW + b"behind") == messages.read(body)
    for end in range(len(body) - 1, len(body) + len(TOMORROW) - 2):
        with pytest.raises(Malformed):
            messages.read((body[:-1] + TOMORROW)[:end])


def test_tagged_fields_of_tomorrow_are_ignored_in_every_element() -> None:
    one, other = b"\x02a", b"\x03bc"
    tomorrow = messages_of("metadata", 9).read(b"\x03" + one + TOMORROW + other + TOMORROW + b"\1\0\1" + TOMORROW)
    assert tomorrow == messages_of("metadata", 9).read(b"\x03" + one + b"\0" + other + b"\0" + b"\1\0\1\0")


def test_an_entity_has_a_bounded_number_of_tagged_fields() -> None:
    """Two million tagged fields fit in a frame, and the bound on rows does not count them."""
    body = body_of("metadata", 12)[:-1]
    assert messages_of("metadata", 12).read(body + bytes([TAGS]) + TOMORROW[1:] * TAGS)
    with pytest.raises(Malformed, match="101 tagged fields in one structure"):
        messages_of("metadata", 12).read(body + bytes([TAGS + 1]) + TOMORROW[1:] * (TAGS + 1))


@pytest.mark.parametrize("byte", [2, 0x7F, 0xFF])
def test_every_byte_but_0_is_true(byte: int) -> None:
    asked = messages_of("metadata", 9).read(b"\x02\x02a\0" + bytes([byte, 0, byte]) + TOMORROW)
    assert asked == messages_of("metadata", 9).read(b"\x02\x02a\0" + b"\1\0\1\0")
    assert not messages_of("describe_configs", 1).read(struct.pack(">iB", 0, 0)).include_synonyms
    assert messages_of("describe_configs", 1).read(struct.pack(">iB", 0, byte)).include_synonyms


def test_a_known_tagged_field_beside_one_of_tomorrow_is_kept() -> None:
    known = b"\x00\x02\x78\x79"  # number 0, two bytes
    kind = type("Kind", (), {"__flexible__": True})
    annotated = dataclasses.make_dataclass("Tagged", [("number", int, field_of_tag(0))], bases=(kind,))
    steps = steps_of(annotated)
    assert at_once(steps, b"\x02" + known + TOMORROW[1:])[0].number == 0x7879
    assert at_once(steps, b"\x02" + TOMORROW[1:] + known + b"behind")[0].number == 0x7879
    assert at_once(steps, b"\x01" + known)[0].number == 0x7879
    assert at_once(steps, b"\x00")[0].number == 0


def field_of_tag(tag: int) -> Any:
    return dataclasses.field(default=0, metadata={"kafka_type": "int16", "tag": tag})
