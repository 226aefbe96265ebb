"""Requests as bytes and responses as plain trees, both by kio from Kafka's schemas; record batches by `batches.py`.

A request is given with the fields of all versions: fields that its version lacks are dropped, and a field that no version
has is an error (a misspelt field would compare nothing). A tree consists of dicts, lists, numbers, text, booleans and None:
error codes by name, durations and times in milliseconds, records batch by batch.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import importlib
import io
import pkgutil
import struct
import types
import typing
import uuid
from typing import Any, TypeAlias

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import InvalidUnicode

from tests.differential.batches import read_batches
from tests.support.kio_fields import entities, is_array

Tree: TypeAlias = Any

CLIENT_ID = "judge"
#: Stands for a response that cannot be decoded.
NO_TEXT: Tree = {"connection": "a string that is not UTF-8"}
_ZEROS: dict[str, Any] = {
    "int8": 0,
    "uint16": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "string": "",
    "bool": False,
    "bytes": b"",
    "timedelta_i32": datetime.timedelta(seconds=30),
    "uuid": None,
    "records": None,
}


@functools.cache
def versions(schema: str) -> tuple[int, ...]:
    """The versions that kio knows, ascending."""
    package = importlib.import_module(f"kio.schema.{schema}")
    return tuple(sorted(int(module.name[1:]) for module in pkgutil.iter_modules(package.__path__)))


@functools.cache
def message(schema: str, version: int, kind: str) -> Any:
    module = importlib.import_module(f"kio.schema.{schema}.v{version}.{kind}")
    return getattr(module, "".join(part.capitalize() for part in schema.split("_")) + kind.capitalize())


def api_key(schema: str) -> int:
    return int(message(schema, versions(schema)[-1], "request").__api_key__)


# --- requests ---------------------------------------------------------------------------------------------------------
def request(schema: str, version: int, correlation: int, values: dict[str, Any], client_id: str = CLIENT_ID) -> bytes:
    """Encodes a request without its size. Raises KeyError for a field that no version of the API has."""
    _check_names(schema, values)
    kind = message(schema, version, "request")
    head = kind.__header_schema__(
        request_api_key=kind.__api_key__,
        request_api_version=kind.__version__,
        correlation_id=correlation,
        client_id=client_id,
    )
    out = io.BytesIO()
    entity_writer(type(head))(out, head)
    entity_writer(kind)(out, _entity(kind, values))
    return out.getvalue()


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _entity(kind: Any, values: dict[str, Any]) -> Any:
    fields = {}
    for field in dataclasses.fields(kind):
        inner = entities(field.type)
        if field.name in values:
            fields[field.name] = _value(values[field.name], inner, field.metadata.get("kafka_type"))
        elif field.default is dataclasses.MISSING:
            fields[field.name] = () if is_array(field.type) else _ZEROS[field.metadata["kafka_type"]]
    return kind(**fields)


def _value(value: Any, inner: list[Any], kafka_type: str | None) -> Any:
    if isinstance(value, dict):
        return _entity(inner[0], value)
    if isinstance(value, list | tuple):
        return tuple(_entity(inner[0], row) if isinstance(row, dict) else row for row in value)
    if kafka_type == "uuid" and isinstance(value, str):
        return uuid.UUID(value)
    if kafka_type in ("timedelta_i32", "timedelta_i64") and isinstance(value, int):
        return datetime.timedelta(milliseconds=value)
    return value


@functools.cache
def _known_names(schema: str) -> frozenset[str]:
    names: set[str] = set()

    def collect(kind: Any) -> None:
        for field in dataclasses.fields(kind):
            names.add(field.name)
            for inner in entities(field.type):
                collect(inner)

    for version in versions(schema):
        collect(message(schema, version, "request"))
    return frozenset(names)


def _check_names(schema: str, values: Any) -> None:
    if isinstance(values, dict):
        for name, value in values.items():
            if name not in _known_names(schema):
                raise KeyError(f"no version of {schema} has a field {name!r}")
            _check_names(schema, value)
    elif isinstance(values, list | tuple):
        for value in values:
            _check_names(schema, value)


# --- answers ----------------------------------------------------------------------------------------------------------
def answer(schema: str, version: int, body: bytes) -> tuple[int, Tree]:
    """Correlation id and tree of a response given without its size; `NO_TEXT` if a string in it is not UTF-8. Raises
    ValueError unless every byte is used."""
    kind = message(schema, version, "response")
    _times_as_numbers(kind)
    head, head_size = entity_reader(kind.__header_schema__)(body, 0)
    try:
        read, size = entity_reader(kind)(body, head_size)
    except InvalidUnicode:
        return int(head.correlation_id), NO_TEXT
    if head_size + size != len(body):
        raise ValueError(f"{schema} v{version}: {len(body) - head_size - size} bytes behind the answer")
    return int(head.correlation_id), tree(read)


@functools.cache
def _times_as_numbers(kind: Any) -> None:
    """Makes kio read times as milliseconds, because kio refuses the -1 by which Kafka says that there is no time."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        is_nullable = type(None) in typing.get_args(hints[field.name])  # kio reads -1 as None there
        if field.metadata.get("kafka_type") == "datetime_i64" and not is_nullable:
            field.metadata = types.MappingProxyType({**field.metadata, "kafka_type": "int64"})
        for inner in entities(hints[field.name]):
            _times_as_numbers(inner)


def tree(value: Any, kafka_type: str | None = None) -> Tree:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: tree(getattr(value, field.name), field.metadata.get("kafka_type"))
            for field in dataclasses.fields(value)
        }
    if kafka_type == "records":
        return None if value is None else read_batches(bytes(value))
    if isinstance(value, tuple):
        return [tree(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.name.upper()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    return value
