"""Whether the counts and lengths in a message can be true, before kio reads it.

kio reserves memory for as many elements as an array says it has; a count of two thousand millions in a frame of fifty
bytes ends the process. So what a request says of itself is compared with its size first: an array has no more elements
than there are bytes left, a length ends within the message, and null stands only where the schema allows it (kio takes
a null array for anything).

Two things that Kafka reads are put into the form that kio takes. Tagged fields that the schema does not have are cut out
(KIP-482: newer clients may send some, which are to be ignored), and a boolean that is neither 0 nor 1 is true.

The shape of a message comes from kio's own classes, so that it needs no table. What can be skipped is not looked at: runs
of fields of fixed size, and arrays of elements of fixed size, cost one comparison.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

from kafka_gateway.hot_parse import Malformed

#: Bytes of the types that always take as many. https://kafka.apache.org/protocol.html#protocol_types
_FIXED = {
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
#: Bytes of the length before a string, or before bytes, in versions that are not flexible.
_LENGTHS = {"string": 2, "bytes": 4, "records": 4}

#: Known tagged fields of one entity beside unknown ones; the count of so many is one byte.
MOST_TAGS = 127

#: From a message and a place in it to the place after the field. Raises Malformed.
Skip = Callable[[bytes, int], int]


class _Unusual(Malformed):
    """The message is to be walked again, as `_Cutting`. Malformed where that stands in a tagged field itself."""


class _Cutting(bytes):
    """A message whose unusual parts are noted while it is walked: (from, to, what stands there instead)."""

    cuts: list[tuple[int, int, bytes]]


def checked(kind: Any, body: bytes) -> bytes:
    """`body` as kio reads it. Raises Malformed where it cannot be a `kind` of kio's; what follows the message is ignored."""
    try:
        _entity(kind)(body, 0)
    except _Unusual:
        cutting = _Cutting(body)
        cutting.cuts = []
        _entity(kind)(cutting, 0)
        return _mended(body, cutting.cuts)
    return body


def _mended(body: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    parts = []
    at = 0
    for begin, end, instead in cuts:
        parts += [body[at:begin], instead]
        at = end
    return b"".join([*parts, body[at:]])


@functools.cache
def _entity(kind: Any) -> Skip:
    flexible = bool(kind.__flexible__)
    fields = dataclasses.fields(kind)
    steps = _joined([_field(each, flexible) for each in fields if "tag" not in each.metadata])
    tagged = {each.metadata["tag"]: _step(_field(each, flexible)) for each in fields if "tag" in each.metadata}

    def skip(data: bytes, at: int) -> int:
        for step in steps:
            at = step(data, at)
        return _skip_tags(data, at, tagged) if flexible else at

    return skip


def _joined(parts: list[int | Skip]) -> list[Skip]:
    """Neighbours of fixed size as one step."""
    steps: list[Skip] = []
    fixed = 0
    for part in parts:
        if isinstance(part, int):
            fixed += part
            continue
        if fixed:
            steps.append(_step(fixed))
        fixed = 0
        steps.append(part)
    return [*steps, _step(fixed)] if fixed else steps


def _step(part: int | Skip) -> Skip:
    return functools.partial(_skip_fixed, part) if isinstance(part, int) else part


def _field(field: dataclasses.Field[Any], flexible: bool) -> int | Skip:
    """The field's size where it is fixed, else how to skip it."""
    kind, nullable = _without_none(field.type)
    if typing.get_origin(kind) is not tuple:
        return _single(kind, field, flexible, nullable=nullable)
    inner, inner_nullable = _without_none(typing.get_args(kind)[0])
    element = _single(inner, field, flexible, nullable=inner_nullable)
    if isinstance(element, int):
        return functools.partial(_skip_fixed_array, flexible, nullable, element)
    return functools.partial(_skip_array, flexible, nullable, element)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (inner,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return inner, True
    return kind, False


def _single(kind: Any, field: dataclasses.Field[Any], flexible: bool, *, nullable: bool) -> int | Skip:
    if dataclasses.is_dataclass(kind):
        assert isinstance(kind, type)
        entity = _entity(kind)
        return functools.partial(_skip_nullable_entity, entity) if nullable else entity
    name = field.metadata["kafka_type"]
    if name in _FIXED:
        return _FIXED[name]
    if name == "bool":
        return _skip_bool
    return functools.partial(_skip_sized, 0 if flexible else _LENGTHS[name], nullable)


# --- skipping ---------------------------------------------------------------------------------------------------------
def _skip_fixed(size: int, data: bytes, at: int) -> int:
    if size > len(data) - at:
        raise Malformed(f"{size} bytes wanted at {at}, {len(data) - at} left")
    return at + size


def _skip_bool(data: bytes, at: int) -> int:
    """Whatever is not 0 is true. https://kafka.apache.org/protocol.html#protocol_types"""
    after = _skip_fixed(1, data, at)
    if data[at] > 1:
        if not isinstance(data, _Cutting):
            raise _Unusual(f"a boolean of {data[at]} at {at}")
        data.cuts.append((at, after, b"\1"))
    return after


def _skip_sized(width: int, nullable: bool, data: bytes, at: int) -> int:
    """A string, or bytes; `width` of its length, 0 for a compact one."""
    at, size = _number(width, data, at)
    if size < 0:
        if not nullable:
            raise Malformed(f"a null at {at} where none is allowed")
        return at
    return _skip_fixed(size, data, at)


def _skip_array(flexible: bool, nullable: bool, element: Skip, data: bytes, at: int) -> int:
    at, count = _count(flexible, nullable, data, at)
    for _ in range(count):
        at = element(data, at)
    return at


def _skip_fixed_array(flexible: bool, nullable: bool, size: int, data: bytes, at: int) -> int:
    at, count = _count(flexible, nullable, data, at)
    return _skip_fixed(count * size, data, at)


def _skip_nullable_entity(entity: Skip, data: bytes, at: int) -> int:
    """KIP-893: a byte before it is negative where there is none."""
    after = _skip_fixed(1, data, at)
    return after if data[at] >= 0x80 else entity(data, after)


def _skip_tags(data: bytes, at: int, tagged: dict[int, Skip]) -> int:
    begin = at
    at, count = _varint(data, at)
    known = []
    for _ in range(count):
        first = at
        at, tag = _varint(data, at)
        at, size = _varint(data, at)
        after = _skip_fixed(size, data, at)
        if tag in tagged:
            tagged[tag](data[:after], at)
            known.append(data[first:after])
        at = after
    if len(known) == count:
        return at
    if not isinstance(data, _Cutting):
        raise _Unusual(f"a tagged field that nobody knows before {at}")
    if len(known) > MOST_TAGS:
        raise Malformed(f"{len(known)} tagged fields before {at}")
    data.cuts.append((begin, at, bytes([len(known)]) + b"".join(known)))
    return at


def _count(flexible: bool, nullable: bool, data: bytes, at: int) -> tuple[int, int]:
    """Of an array's elements, each of which takes a byte at least."""
    at, count = _number(0 if flexible else 4, data, at)
    if count < 0:
        if not nullable:
            raise Malformed(f"a null array at {at} where none is allowed")
        return at, 0
    if count > len(data) - at:
        raise Malformed(f"an array of {count} elements at {at}, where {len(data) - at} bytes are left")
    return at, count


def _number(width: int, data: bytes, at: int) -> tuple[int, int]:
    """(the place after it, a length or count); negative for null."""
    if not width:
        at, value = _varint(data, at)
        return at, value - 1
    after = _skip_fixed(width, data, at)
    return after, int.from_bytes(data[at:after], "big", signed=True)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Unsigned, of at most five bytes."""
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
