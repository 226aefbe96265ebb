"""Reads requests other than Produce and Fetch into named tuples, in steps, within a bound on rows.

kio's own reader reads a message at once: a frame of megabytes blocks the event loop for seconds, and a count of two billion in
a frame of fifty bytes ends the process. This reader derives the same layouts from kio's classes, and yields whenever its turn
is over. It checks every number before use: an array has no more elements than the message has bytes left, a length ends within
the message, and null appears only where the schema allows it.

The elements of all arrays of a message are its rows. Reading stops at the first row beyond the bound. The refusal names the
rows before it.

As in Kafka, tagged fields that the schema does not have are ignored (KIP-482: newer clients may send some), any boolean other
than 0 is true, and bytes after the message are ignored.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import struct
import types
import typing
import uuid
from collections import namedtuple
from collections.abc import Callable, Generator
from typing import Any, Protocol

from kafka_gateway.hot_parse import LONGEST_STRING, PARTITIONS_A_REQUEST, TAGS, Malformed, too_many_tags

#: Most elements in all arrays of one request together.
ROWS_A_REQUEST = PARTITIONS_A_REQUEST
#: Elements between two checks of the clock.
_LOOK = 16

#: Takes a message and a position. Returns the value and the position after it. Raises Malformed.
Read = Callable[[bytes, int], tuple[Any, int]]
#: Does the same as `Read`, in steps.
Steps = Callable[["MessageReading", int], Generator[None, None, tuple[Any, int]]]


class Clocked(Protocol):
    """Tells when to yield (`turns.Turn`)."""

    @property
    def is_over(self) -> bool: ...


class Endless:
    """A turn that is never over."""

    is_over = False


class MessageReading:
    """The state of reading one message. `is_full` is true if the bound on rows is reached and more rows follow."""

    def __init__(self, data: bytes, turn: Clocked, most_rows: int = ROWS_A_REQUEST) -> None:
        self.data = data
        self.turn = turn
        self.left = most_rows
        self.is_full = False

    def take(self, count: int) -> int:
        """Counts rows that are about to be read. Returns how many of `count` rows the bound allows."""
        if count > self.left:
            count, self.is_full = self.left, True
        self.left -= count
        return count


def steps_of(kind: Any) -> Steps:
    """Returns the reader of kio's class `kind`. The values that it returns have fields of the same names."""
    part = _entity(kind)
    return part if isinstance(part, _Stepped) else _stepped(part)


def at_once(steps: Steps, data: bytes) -> tuple[Any, MessageReading]:
    """Reads the value without yielding."""
    reading = MessageReading(data, Endless())
    return _exhausted(steps(reading, 0))[0], reading


def _exhausted(steps: Generator[None, None, tuple[Any, int]]) -> tuple[Any, int]:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        value: tuple[Any, int] = end.value
        return value


class _Stepped:
    """A reader in steps."""

    def __init__(self, steps: Steps, empty: Any) -> None:
        self._steps = steps
        #: The value of a field beyond the bound on rows.
        self.empty = empty

    def __call__(self, reading: MessageReading, at: int) -> Generator[None, None, tuple[Any, int]]:
        return self._steps(reading, at)


#: Read or _Stepped.
_Part = Any


def _stepped(read: Read) -> Steps:
    def steps(reading: MessageReading, at: int) -> Generator[None, None, tuple[Any, int]]:
        yield from ()
        return read(reading.data, at)

    return steps


# --- entities ---------------------------------------------------------------------------------------------------------
@functools.cache
def _entity(kind: Any) -> _Part:
    flexible = bool(kind.__flexible__)
    fields = dataclasses.fields(kind)
    made = namedtuple(kind.__name__, [field.name for field in fields])  # type: ignore[misc]
    plain = [(nth, _field(each, flexible)) for nth, each in enumerate(fields) if "tag" not in each.metadata]
    tagged = {
        each.metadata["tag"]: (nth, _whole(_field(each, flexible)))
        for nth, each in enumerate(fields)
        if "tag" in each.metadata
    }
    #: Values of tagged fields that the message does not have.
    absent = [each.default if each.default is not dataclasses.MISSING else None for each in fields]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = absent.copy()
        for nth, part in plain:
            values[nth], at = part(data, at)
        if flexible:
            at = _read_tags(data, at, tagged, values)
        return made._make(values), at

    def steps(reading: MessageReading, at: int) -> Generator[None, None, tuple[Any, int]]:
        values = absent.copy()
        data = reading.data
        for nth, part in plain:
            if not isinstance(part, _Stepped):
                values[nth], at = (None, at) if reading.is_full else part(data, at)
            elif reading.is_full:
                values[nth] = part.empty
            else:
                values[nth], at = yield from part(reading, at)
        if flexible and not reading.is_full:
            at = _read_tags(data, at, tagged, values)
        return made._make(values), at

    if any(isinstance(part, _Stepped) for _, part in plain):
        return _Stepped(steps, None)
    return read


def _whole(part: _Part) -> Read:
    """Reads a tagged field at once. The field's size limits the work."""
    if not isinstance(part, _Stepped):
        read_whole: Read = part
        return read_whole

    def read(data: bytes, at: int) -> tuple[Any, int]:
        reading = MessageReading(data, Endless())
        value = _exhausted(part(reading, at))
        if reading.is_full:
            raise Malformed(f"a tagged field of more than {ROWS_A_REQUEST} elements at {at}")
        return value

    return read


def _read_tags(data: bytes, at: int, tagged: dict[int, tuple[int, Read]], values: list[Any]) -> int:
    if at < len(data) and not data[at]:
        return at + 1
    at, count = _varint(data, at)
    if count > TAGS:
        raise too_many_tags(count)
    for _ in range(count):
        at, tag = _varint(data, at)
        at, size = _varint(data, at)
        after = _after(data, at, size)
        known = tagged.get(tag)
        if known is not None:
            nth, read = known
            values[nth], _ = read(data[:after], at)
        at = after
    return at


# --- fields -----------------------------------------------------------------------------------------------------------
def _field(field: dataclasses.Field[Any], flexible: bool) -> _Part:
    kind, nullable = _without_none(field.type)
    if typing.get_origin(kind) is not tuple:
        return _single(kind, field, flexible, nullable=nullable)
    inner, inner_nullable = _without_none(typing.get_args(kind)[0])
    return _array(_single(inner, field, flexible, nullable=inner_nullable), flexible, nullable=nullable)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (inner,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return inner, True
    return kind, False


def _single(kind: Any, field: dataclasses.Field[Any], flexible: bool, *, nullable: bool) -> _Part:
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        return _nullable_entity(_entity(kind)) if nullable else _entity(kind)
    name = field.metadata["kafka_type"]
    if name in _SIZED:
        width, value_of = _SIZED[name]
        most = LONGEST_STRING if width == 2 else None
        return functools.partial(_read_sized, 0 if flexible else width, most, nullable, value_of)
    fixed, converted = _FIXED[name]
    return functools.partial(_read_fixed, struct.Struct(fixed), converted)


def _nullable_entity(entity: _Part) -> Read:
    """KIP-893: a byte before the entity is negative for null."""
    whole = _whole(entity)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        after = _after(data, at, 1)
        return (None, after) if data[at] >= 0x80 else whole(data, after)

    return read


def _array(element: _Part, flexible: bool, *, nullable: bool) -> _Stepped:
    def simple(reading: MessageReading, at: int) -> Generator[None, None, tuple[Any, int]]:
        data, turn = reading.data, reading.turn
        at, count = _count(flexible, nullable, data, at)
        if count < 0:
            return None, at
        rows = []
        for n in range(reading.take(count)):
            value, at = element(data, at)
            rows.append(value)
            if not n % _LOOK and turn.is_over:
                yield
        return tuple(rows), at

    def nested(reading: MessageReading, at: int) -> Generator[None, None, tuple[Any, int]]:
        assert isinstance(element, _Stepped)
        turn = reading.turn
        at, count = _count(flexible, nullable, reading.data, at)
        if count < 0:
            return None, at
        rows = []
        for _ in range(reading.take(count)):
            value, at = yield from element(reading, at)
            rows.append(value)
            if reading.is_full:
                break
            if turn.is_over:
                yield
        return tuple(rows), at

    return _Stepped(nested if isinstance(element, _Stepped) else simple, ())


# --- values -----------------------------------------------------------------------------------------------------------
def _uuid(value: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=value) if value != bytes(16) else None


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


#: Types of fixed size: their struct format, and the conversion of the value or None.
#: https://kafka.apache.org/protocol.html#protocol_types
_FIXED: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "bool": (">B", bool),
    "int8": (">b", None),
    "int16": (">h", None),
    "uint16": (">H", None),
    "error_code": (">h", None),
    "int32": (">i", None),
    "timedelta_i32": (">i", _milliseconds),
    "int64": (">q", None),
    "timedelta_i64": (">q", _milliseconds),
    "datetime_i64": (">q", None),
    "float64": (">d", None),
    "uuid": (">16s", _uuid),
}
#: Size of the length field in versions that are not flexible, and the conversion of the bytes after it.
_SIZED: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "string": (2, lambda value: str(value, "utf-8")),
    "bytes": (4, bytes),
    "records": (4, bytes),
}


def _read_fixed(form: struct.Struct, converted: Callable[[Any], Any] | None, data: bytes, at: int) -> tuple[Any, int]:
    after = _after(data, at, form.size)
    (value,) = form.unpack_from(data, at)
    if converted is None:
        return value, after
    try:
        return converted(value), after
    except OverflowError as error:
        raise Malformed(f"a number at {at}: {error}") from error


def _read_sized(
    width: int, most: int | None, nullable: bool, value_of: Callable[[bytes], Any], data: bytes, at: int
) -> tuple[Any, int]:
    """Reads a string or bytes. `width` is the size of its length field, 0 for the compact form. `most` is the largest size."""
    at, size = _number(width, data, at)
    if most is not None and size > most:
        raise Malformed(f"a string of {size} bytes at {at}; at most {most} are allowed")
    if size < 0:
        if not nullable:
            raise Malformed(f"a null at {at} where none is allowed")
        return None, at
    after = _after(data, at, size)
    try:
        return value_of(data[at:after]), after
    except UnicodeDecodeError as error:
        raise Malformed(f"a string at {at}: {error}") from error


def _after(data: bytes, at: int, size: int) -> int:
    if size > len(data) - at:
        raise Malformed(f"{size} bytes wanted at {at}, {len(data) - at} left")
    return at + size


def _count(flexible: bool, nullable: bool, data: bytes, at: int) -> tuple[int, int]:
    """Reads the count of an array. Returns the position after it and the count (-1 for null). A count above the number of bytes
    left is refused, because an element takes at least one byte."""
    at, count = _number(0 if flexible else 4, data, at)
    if count < -1:
        raise Malformed(f"an array of {count} elements at {at}")
    if count < 0:
        if not nullable:
            raise Malformed(f"a null array at {at} where none is allowed")
        return at, -1
    if count > len(data) - at:
        raise Malformed(f"an array of {count} elements at {at}, where {len(data) - at} bytes are left")
    return at, count


def _number(width: int, data: bytes, at: int) -> tuple[int, int]:
    """Reads a length or a count. Returns the position after it and the number, which is negative for null."""
    if not width:
        at, value = _varint(data, at)
        return at, value - 1
    after = _after(data, at, width)
    return after, int.from_bytes(data[at:after], "big", signed=True)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most five bytes. Returns the position after it and the value."""
    value = shift = 0
    while shift < 35:
        if at >= len(data):
            raise Malformed(f"the message ends in a number at {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, value
        shift += 7
    raise Malformed(f"a varint of more than five bytes ends at {at}")
