"""Kafka's messages other than Produce and Fetch, by the schemas of `kio`. No other module imports `kio`.

A `Messages` object imports kio's modules of its version when it is made. A client uses only a few API versions, and all
versions together have hundreds of modules. kio registers itself with `hypothesis` if that is installed, which costs 20 MB and
seconds. A process that has not imported hypothesis therefore hides it while it imports kio.

`make` builds a row of the response from the union of all versions' fields and drops those that its version does not have, so
that handlers need not check the version.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import struct
import sys
import uuid
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from kafka_gateway.hot_parse import Malformed
from kafka_gateway.message_reader import Clocked, Endless, MessageReading, at_once, steps_of
from kafka_gateway.message_writer import Encoded, Row, Writing, encoded, plan_of
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

#: Largest request that is read into objects. Each of its bytes may become an object. 10,000 topics with the longest names take
#: more than half of this size.
MESSAGE_BYTES = 4 << 20
#: Largest request of a group whose rows hold long texts or bytes: subscriptions and assignments of thousands of members, and
#: offsets with metadata. A record of a group or an offset holds at most 1 MiB by default, so a larger request would only be
#: refused later, after a copy that blocks the event loop.
GROUP_REQUEST_BYTES = 16 << 20
_GROUP_REQUESTS = frozenset({"join_group", "offset_commit", "sync_group", "txn_offset_commit"})

#: The topic id that means "no topic id".
NO_TOPIC_ID = TopicId(bytes(16))

_PREFIX = struct.Struct(">ii")


class Messages:
    """One version of one API. `schema` is its name in kio, for example `create_topics`."""

    def __init__(self, schema: str, version: int) -> None:
        self.version = version
        self._most = GROUP_REQUEST_BYTES if schema in _GROUP_REQUESTS else MESSAGE_BYTES
        camel = "".join(part.capitalize() for part in schema.split("_"))
        request = importlib.import_module(f"kio.schema.{schema}.v{version}.request")
        self._response = importlib.import_module(f"kio.schema.{schema}.v{version}.response")
        self._request_kind = getattr(request, f"{camel}Request")
        self._steps = steps_of(self._request_kind)
        response_kind = getattr(self._response, f"{camel}Response")
        self._response_plan = plan_of(response_kind)
        self._flexible = bool(response_kind.__flexible__)
        self._tagged_header = bool(response_kind.__header_schema__.__flexible__)

    def reading(self, body: bytes, turn: Clocked) -> Generator[None, None, tuple[Any, bool]]:
        """Reads the request in steps. Returns the request, truncated at the bound on rows, and whether it was truncated.
        Ignores trailing bytes and tagged fields of later versions, as Kafka does. Raises Malformed."""
        self.check(len(body))
        reading = MessageReading(body, turn)
        request, _ = yield from self._steps(reading, 0)
        return request, reading.is_full

    def read(self, body: bytes) -> Any:
        """Reads the request at once. Raises Malformed."""
        self.check(len(body))
        return at_once(self._steps, body)[0]

    def check(self, size: int) -> None:
        """Raises Malformed if a request is too large to be read. Call it before the request is copied."""
        if size > self._most:
            raise Malformed(f"{self._request_kind.__name__} of {size} bytes; at most {self._most} are accepted")

    def make(self, kind: str, /, **values: Any) -> Row:
        """Makes a row of the response. `kind` is the row's class in Kafka's schema. Error codes and throttle times are
        numbers."""
        return Row(plan_of(getattr(self._response, kind)), values)

    def encoded(self, rows: Iterable[Row]) -> Encoded:
        """Encodes an array of rows once, for use in many rows or answers."""
        return encoded(rows, flexible=self._flexible)

    def writing(
        self, correlation: int, answer: Mapping[str, Any], turn: Clocked, codes: Counter[int]
    ) -> Generator[None, None, Sequence[bytes]]:
        """Writes the framed answer in steps and returns its pieces. Adds its error codes to `codes`. Raises PolicyViolation if
        the answer gets too large, and the exceptions of its rows."""
        writing = Writing(turn)
        yield from self._response_plan.steps(writing, answer)
        pieces = yield from writing.joined()
        for code, times in writing.codes.items():
            codes[code] += times
        if self._tagged_header:
            prefix = _PREFIX.pack(writing.size + 5, correlation) + b"\0"
        else:
            prefix = _PREFIX.pack(writing.size + 4, correlation)
        if not pieces:
            return (prefix,)
        pieces[0] = prefix + pieces[0]
        return pieces

    def respond(self, correlation: int, **values: Any) -> bytes:
        """Writes the framed answer at once, and returns it as one piece."""
        steps = self.writing(correlation, values, Endless(), Counter())
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return b"".join(end.value)


@functools.cache
def messages_of(schema: str, version: int) -> Messages:
    return Messages(schema, version)


def to_uuid(topic_id: TopicId | None) -> uuid.UUID | None:
    return None if topic_id is None else uuid.UUID(bytes=bytes(topic_id))


def from_uuid(value: uuid.UUID | None) -> TopicId | None:
    return None if value is None else TopicId(value.bytes)


def milliseconds(duration: datetime.timedelta) -> int:
    return round(duration.total_seconds() * 1000)


def duration_of(ms: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=ms)
