"""Kafka's messages other than Produce and Fetch, read and written by `kio`; the only module that imports it.

One `Messages` per API version, imported at its first use: a client touches a handful of versions, and all of them
together cost hundreds of modules. kio registers itself with `hypothesis` where that is installed, which costs 20 MB and
seconds; a node hides it during the import (a process that has imported hypothesis already keeps it).

`make` builds an entity from the union of all versions' fields and drops those that its version does not have, so that
handlers never ask which version they answer.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import io
import struct
import sys
import uuid
from dataclasses import fields
from typing import Any

from kafka_gateway.hot_parse import Malformed
from kafka_gateway.message_shape import checked
from storage_tiers.types import TopicId


def _import_lean() -> None:
    """Imports kio's base without hypothesis."""
    hidden = "hypothesis" not in sys.modules
    if hidden:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        if hidden:
            del sys.modules["hypothesis"]


_import_lean()

from kio.schema.errors import ErrorCode as KioErrorCode  # noqa: E402
from kio.serial import entity_reader, entity_writer  # noqa: E402

#: Of a request that is read into objects: each byte of it may become one, and the event loop waits meanwhile. 10,000
#: topics with the longest names take more than half of it.
MESSAGE_BYTES = 4 << 20

_NO_THROTTLE = datetime.timedelta(0)
_PREFIX = struct.Struct(">ii")


class Messages:
    """One version of one API: `schema` is kio's name of it, for example `create_topics`."""

    def __init__(self, schema: str, version: int) -> None:
        self.version = version
        camel = "".join(part.capitalize() for part in schema.split("_"))
        request = importlib.import_module(f"kio.schema.{schema}.v{version}.request")
        self._response = importlib.import_module(f"kio.schema.{schema}.v{version}.response")
        self._request_kind = getattr(request, f"{camel}Request")
        self._response_kind = getattr(self._response, f"{camel}Response")
        self._read = entity_reader(self._request_kind)
        self._write = entity_writer(self._response_kind)
        self._tagged_header = bool(self._response_kind.__header_schema__.__flexible__)

    def read(self, body: bytes) -> Any:
        """The request. Trailing bytes and tagged fields of later versions are ignored, as Kafka does. Raises Malformed."""
        if len(body) > MESSAGE_BYTES:
            raise Malformed(f"{self._request_kind.__name__} of {len(body)} bytes; at most {MESSAGE_BYTES} are taken")
        known = checked(self._request_kind, body)
        try:
            return self._read(known, 0)[0]
        except Exception as error:
            raise Malformed(f"{self._request_kind.__name__} v{self.version}: {error}") from error

    def make(self, kind: str, /, **values: Any) -> Any:
        """An entity of the response, `kind` is its class in Kafka's schema. Error codes and throttle times are numbers."""
        entity = getattr(self._response, kind)
        names = _field_names(entity)
        if "error_code" in values:
            values["error_code"] = KioErrorCode(int(values["error_code"]))
        if "throttle_time" in names:
            values.setdefault("throttle_time", _NO_THROTTLE)
        return entity(**{name: value for name, value in values.items() if name in names})

    def respond(self, correlation: int, **values: Any) -> bytes:
        """The whole answer as it goes out: size, header, and the response built of `values`."""
        out = io.BytesIO()
        self._write(out, self.make(self._response_kind.__name__, **values))
        body = out.getvalue()
        if self._tagged_header:
            return _PREFIX.pack(len(body) + 5, correlation) + b"\0" + body
        return _PREFIX.pack(len(body) + 4, correlation) + body


@functools.cache
def messages_of(schema: str, version: int) -> Messages:
    return Messages(schema, version)


@functools.cache
def _field_names(entity: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in fields(entity))


def to_uuid(topic_id: TopicId | None) -> uuid.UUID | None:
    return None if topic_id is None else uuid.UUID(bytes=bytes(topic_id))


def from_uuid(value: uuid.UUID | None) -> TopicId | None:
    return None if value is None else TopicId(value.bytes)


def milliseconds(duration: datetime.timedelta) -> int:
    return round(duration.total_seconds() * 1000)
