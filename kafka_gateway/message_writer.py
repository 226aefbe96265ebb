"""Writes answers other than Produce's and Fetch's, row by row and in steps.

kio's own writer writes a tree of entities at once: an answer of a hundred thousand rows blocks the event loop for seconds, and
the tree is many times as large as its bytes. This writer keeps no rows. It writes each row as soon as it is made, and yields
when its turn is over. It derives the layouts from kio's classes.

An array may be any iterable. A generator's count is filled in at the end. `Encoded` is a field that is already encoded. Its
bytes are sent as they are, any number of times, without a copy if they are many.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import struct
import types
import typing
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from kafka_gateway.answer_primitives import array_size, varint
from kafka_gateway.message_reader import Clocked, Endless
from storage_tiers.errors import PolicyViolation

#: Largest answer. Kafka's limit is 2 GiB, because larger sizes do not fit the four bytes of a frame's size.
ANSWER_BYTES = 256 << 20
#: Most rows in all arrays of one answer together. So many rows take a few seconds, during which the request occupies one of few
#: slots.
ANSWER_ROWS = 2_000_000
#: Written bytes become a piece at this size.
_PIECE_BYTES = 64 << 10
#: Smaller pieces are joined with their neighbours.
_OWN_PIECE_BYTES = 1 << 10
#: Rows and pieces between two checks of the clock.
_LOOK = 8
_PIECES = 256

Values = Mapping[str, Any]
Write = Callable[[bytearray, Any], None]
WriteSteps = Callable[["Writing", Any], Generator[None, None, None]]


class Encoded:
    """The encoded bytes of a field."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Row:
    """An entity of an answer: its plan and its fields by name."""

    __slots__ = ("plan", "values")

    def __init__(self, plan: Plan, values: Values) -> None:
        self.plan = plan
        self.values = values


class Writing:
    """The state of writing one answer. `codes` counts its error codes other than 0."""

    def __init__(self, turn: Clocked) -> None:
        self.turn = turn
        self.codes: dict[int, int] = {}
        self.pieces: list[bytes] = []
        self.out = bytearray()
        self.size = 0
        self._rows = 0

    def cut(self) -> None:
        """Makes a piece of the bytes written since the last piece. Raises PolicyViolation if the answer gets too large."""
        if self.out:
            self._add(bytes(self.out))
            self.out.clear()

    def count(self, rows: int) -> None:
        """Counts written rows. Raises PolicyViolation if the answer has too many."""
        self._rows += rows
        if self._rows > ANSWER_ROWS:
            raise PolicyViolation(f"the answer has more than {ANSWER_ROWS} rows; send smaller requests")

    def encoded(self, data: bytes) -> None:
        if len(data) < _OWN_PIECE_BYTES:
            self.out += data
            return
        self.cut()
        self._add(data)

    def reserve(self) -> int:
        """Adds a piece that is filled later. Returns its index."""
        self.cut()
        self.pieces.append(b"")
        return len(self.pieces) - 1

    def fill(self, piece: int, data: bytes) -> None:
        self.pieces[piece] = data
        self.size += len(data)

    def joined(self) -> Generator[None, None, list[bytes]]:
        """Takes out the pieces to send and joins small ones, in steps. Each reserved count is a piece of its own. Without
        joining, every piece would be a separate buffer of the system call."""
        self.cut()
        pieces, self.pieces = self.pieces, []
        pieces.reverse()
        found: list[bytes] = []
        small = bytearray()
        while pieces:
            piece = pieces.pop()
            if len(piece) < _OWN_PIECE_BYTES:
                small += piece
            else:
                if small:
                    found.append(bytes(small))
                    small.clear()
                found.append(piece)
            if len(small) >= _PIECE_BYTES:
                found.append(bytes(small))
                small.clear()
            if not len(pieces) % _PIECES and self.turn.is_over:
                yield
        if small:
            found.append(bytes(small))
        return found

    def _add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > ANSWER_BYTES:
            raise PolicyViolation(f"the answer takes more than {ANSWER_BYTES} bytes; send smaller requests")
        self.pieces.append(piece)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """Either `write` or `steps` is set; `default` is MISSING for a required field."""

    name: str
    default: Any
    write: Write | None
    steps: WriteSteps | None


class Plan:
    """The writer of one of kio's classes."""

    def __init__(self, kind: Any) -> None:
        fields = dataclasses.fields(kind)
        self.name = kind.__name__
        self.names = frozenset(field.name for field in fields)
        self.flexible = bool(kind.__flexible__)
        self._fields = [_field(each, self.flexible) for each in fields if "tag" not in each.metadata]
        tagged = [(each.metadata["tag"], _field(each, self.flexible)) for each in fields if "tag" in each.metadata]
        self._tagged = sorted(tagged, key=lambda each: each[0])
        self._has_code = "error_code" in self.names
        self.in_steps = any(field.steps is not None for field in self._fields)

    def write(self, out: bytearray, values: Values, codes: dict[int, int]) -> None:
        """Writes an entity without arrays of entities."""
        if self._has_code and (code := int(values["error_code"])):
            codes[code] = codes.get(code, 0) + 1
        for field in self._fields:
            assert field.write is not None
            field.write(out, self._value(field, values))
        if self.flexible:
            self._write_tags(out, values)

    def steps(self, writing: Writing, values: Values) -> Generator[None, None, None]:
        if self._has_code and (code := int(values["error_code"])):
            writing.codes[code] = writing.codes.get(code, 0) + 1
        for field in self._fields:
            value = self._value(field, values)
            if field.write is not None:
                field.write(writing.out, value)
            else:
                assert field.steps is not None
                yield from field.steps(writing, value)
        if self.flexible:
            self._write_tags(writing.out, values)

    def _value(self, field: _Field, values: Values) -> Any:
        value = values.get(field.name, field.default)
        if value is dataclasses.MISSING:
            raise TypeError(f"{self.name} needs {field.name}")
        return value

    def _write_tags(self, out: bytearray, values: Values) -> None:
        """Writes the tagged fields that differ from their defaults."""
        if not self._tagged:
            out.append(0)
            return
        given = [
            (tag, field)
            for tag, field in self._tagged
            if field.name in values and values[field.name] != field.default and values[field.name] is not None
        ]
        out += varint(len(given))
        for tag, field in given:
            writing = Writing(Endless())
            if field.write is not None:
                field.write(writing.out, values[field.name])
            else:
                assert field.steps is not None
                for _ in field.steps(writing, values[field.name]):
                    pass
            writing.cut()
            data = b"".join(writing.pieces)
            out += varint(tag) + varint(len(data)) + data


@functools.cache
def plan_of(kind: Any) -> Plan:
    return Plan(kind)


def encoded(rows: Iterable[Row], *, flexible: bool) -> Encoded:
    """Encodes an array of rows at once. The rows must be few or small."""
    writing = Writing(Endless())
    for _ in _write_rows(flexible, False, writing, rows):
        pass
    writing.cut()
    return Encoded(b"".join(writing.pieces))


# --- fields -----------------------------------------------------------------------------------------------------------
def _field(field: dataclasses.Field[Any], flexible: bool) -> _Field:
    default = datetime.timedelta(0) if field.name == "throttle_time" else field.default
    kind, nullable = _without_none(field.type)
    if typing.get_origin(kind) is not tuple:
        return _Field(field.name, default, _single(kind, field, flexible, nullable=nullable), None)
    inner, _ = _without_none(typing.get_args(kind)[0])
    if dataclasses.is_dataclass(inner):
        return _Field(field.name, default, None, functools.partial(_write_rows, flexible, nullable))
    write = functools.partial(_write_array, flexible, _single(inner, field, flexible, nullable=False))
    return _Field(field.name, default, write, None)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (inner,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return inner, True
    return kind, False


def _single(kind: Any, field: dataclasses.Field[Any], flexible: bool, *, nullable: bool) -> Write:
    if dataclasses.is_dataclass(kind):
        return functools.partial(_write_entity, nullable and "tag" not in field.metadata)
    name = field.metadata["kafka_type"]
    if name == "string":
        return functools.partial(_write_text, flexible)
    if name in ("bytes", "records"):
        return functools.partial(_write_bytes, flexible)
    form, converted = _FIXED[name]
    return functools.partial(_write_fixed, struct.Struct(form).pack, converted)


def _write_rows(
    flexible: bool, nullable: bool, writing: Writing, rows: Iterable[Row] | Encoded | None
) -> Generator[None, None, None]:
    if rows is None:
        writing.out += array_size(-1, flexible)
        return
    if isinstance(rows, Encoded):
        writing.encoded(rows.data)
        return
    sized = len(rows) if isinstance(rows, tuple | list) else -1
    count_piece = -1
    if sized >= 0:
        writing.out += array_size(sized, flexible)
    else:
        count_piece = writing.reserve()
    count = uncounted = 0
    for row in rows:
        if row.plan.in_steps:
            yield from row.plan.steps(writing, row.values)
        else:
            row.plan.write(writing.out, row.values, writing.codes)
        count += 1
        uncounted += 1
        if len(writing.out) >= _PIECE_BYTES:
            writing.cut()
        if row.plan.in_steps or not count % _LOOK:
            writing.count(uncounted)
            uncounted = 0
            if writing.turn.is_over:
                yield
    writing.count(uncounted)
    if count_piece >= 0:
        writing.cut()
        writing.fill(count_piece, array_size(count, flexible))


def _write_entity(nullable: bool, out: bytearray, row: Row | None) -> None:
    """KIP-893: a byte before the entity is negative for null."""
    if nullable:
        out += b"\xff" if row is None else b"\1"
    if row is not None:
        row.plan.write(out, row.values, {})


def _write_array(flexible: bool, write: Write, out: bytearray, values: tuple[Any, ...] | list[Any] | None) -> None:
    if values is None:
        out += array_size(-1, flexible)
        return
    out += array_size(len(values), flexible)
    for value in values:
        write(out, value)


def _write_text(flexible: bool, out: bytearray, value: str | None) -> None:
    data = None if value is None else value.encode()
    if data is None:
        out += b"\0" if flexible else b"\xff\xff"
    else:
        out += varint(len(data) + 1) if flexible else struct.pack(">h", len(data))
        out += data


def _write_bytes(flexible: bool, out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        out += varint(len(value) + 1) if flexible else struct.pack(">i", len(value))
        out += value


def _write_fixed(
    pack: Callable[[Any], bytes], converted: Callable[[Any], Any] | None, out: bytearray, value: Any
) -> None:
    out += pack(value if converted is None else converted(value))


def _milliseconds(value: datetime.timedelta) -> int:
    return round(value.total_seconds() * 1000)


def _uuid(value: uuid.UUID | None) -> bytes:
    return bytes(16) if value is None else value.bytes


#: The inverse of `message_reader._FIXED`.
_FIXED: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "bool": (">?", None),
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
