"""The client's side of the wire, by kio: the oracle for the gateway's own parsers and encoders."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import struct
from typing import Any

import crc32c
from kio.serial import entity_reader, entity_writer

from tests.support.kio_fields import entities, is_array

_ZEROS: dict[str, Any] = {
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "string": "",
    "bytes": b"",
    "bool": False,
    "timedelta_i32": datetime.timedelta(seconds=30),
    "uuid": None,
    "records": None,
}


def milliseconds(count: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=count)


def message(schema: str, version: int, kind: str) -> Any:
    module = importlib.import_module(f"kio.schema.{schema}.v{version}.{kind}")
    return getattr(module, "".join(part.capitalize() for part in schema.split("_")) + kind.capitalize())


def entity(kind: Any, values: dict[str, Any]) -> Any:
    """Builds a `kind` from nested dicts: unknown fields are dropped, missing ones are zero, empty or their default."""
    fields = {}
    for field in dataclasses.fields(kind):
        inner = entities(field.type)
        if field.name in values:
            value = values[field.name]
            if inner and isinstance(value, dict):
                value = entity(inner[0], value)
            elif isinstance(value, list | tuple):
                value = tuple(entity(inner[0], row) if isinstance(row, dict) else row for row in value)
            fields[field.name] = value
        elif field.default is dataclasses.MISSING:
            fields[field.name] = () if is_array(field.type) else _ZEROS[field.metadata["kafka_type"]]
    return kind(**fields)


def request_frame(schema: str, version: int, /, *, correlation: int = 7, **values: Any) -> bytes:
    """The bytes of a request on the wire, including its size."""
    kind = message(schema, version, "request")
    header = kind.__header_schema__(
        request_api_key=kind.__api_key__,
        request_api_version=kind.__version__,
        correlation_id=correlation,
        client_id="test",
    )
    out = io.BytesIO()
    entity_writer(type(header))(out, header)
    entity_writer(kind)(out, entity(kind, values))
    body = out.getvalue()
    return struct.pack(">i", len(body)) + body


def response(schema: str, version: int, body: bytes) -> Any:
    """Decodes a response given without its size; every byte must be used."""
    kind = message(schema, version, "response")
    _, header_size = entity_reader(kind.__header_schema__)(body, 0)
    read, size = entity_reader(kind)(body, header_size)
    assert header_size + size == len(body)
    return read


def record_batch(*values: bytes, attributes: int = 0, timestamp: int = 1_700_000_000_000) -> bytes:
    """An uncompressed v2 batch without keys."""

    def varint(number: int) -> bytes:
        number, out = (number << 1) ^ (number >> 63), bytearray()
        while number & ~0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*out, number])

    records = bytearray()
    for place, value in enumerate(values):
        record = b"\0" + varint(0) + varint(place) + varint(-1) + varint(len(value)) + value + varint(0)
        records += varint(len(record)) + record
    count = len(values)
    head = struct.pack(">hiqqqhii", attributes, count - 1, timestamp, timestamp, -1, -1, -1, count)
    tail = head + records
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c.crc32c(tail)) + tail
