"""Counts the fields of an encoded protobuf message, nested ones included, before it is parsed.

protobuf parses a message in one go, and no other call is served meanwhile: two million empty elements in 4 MiB take a tenth of
a second. The servicers bound the rows of a message, but can count them only once it is parsed.

Cython in pure-Python mode; its C types are in `field_count.pxd`, and uncompiled it gives the same numbers.

Invariant: a parser of this layout never reads more fields than the count, even of bytes that it then refuses. The count of
malformed bytes may be too high.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

# Wire types. https://protobuf.dev/programming-guides/encoding/
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = 0, 1, 2, 3, 4, 5
#: Maximum depth of nested messages, as in protobuf's parsers.
_DEEPEST = 100
#: A varint's bits beyond 64 are lost.
_ALL_BITS = 0xFFFFFFFFFFFFFFFF
#: Bytes of a packed array that count as one field: four of its numbers are parsed in the time of a field.
_PACKED = 4


class Layout:
    """The layout of a message for the count, by field number. `inner` has the layouts of nested messages; `packed` is True if
    the field may hold an array of numbers."""

    def __init__(self, numbers: int) -> None:
        self.inner: list[Any] = [None] * numbers
        self.packed: list[Any] = [False] * numbers


def count_fields(data: bytes, layout: Layout, most: cython.longlong) -> cython.longlong:
    """The number of fields. If there are more than `most`, any number above `most`."""
    raw: cython.p_const_uchar = data
    return _counted(raw, 0, len(data), layout, most, 0)


def _counted(
    raw: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    layout: Layout,
    most: cython.longlong,
    depth: cython.int,
) -> cython.longlong:
    count: cython.longlong = 0
    numbers: cython.Py_ssize_t = len(layout.inner)
    tag: cython.ulonglong
    size: cython.ulonglong
    number: cython.ulonglong
    shift: cython.int
    kind: cython.int
    while at < end and count <= most:
        count += 1
        tag = shift = 0
        while at < end and shift < 64:
            tag = (tag | _wide(raw[at] & 0x7F) << shift) & _ALL_BITS
            shift += 7
            at += 1
            if raw[at - 1] < 0x80:
                break
        kind = tag & 7
        if kind == _VARINT:
            while at < end and raw[at] >= 0x80:
                at += 1
            at += 1
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _BYTES:
            size = shift = 0
            while at < end and shift < 64:
                size = (size | _wide(raw[at] & 0x7F) << shift) & _ALL_BITS
                shift += 7
                at += 1
                if raw[at - 1] < 0x80:
                    break
            if size > _wide(end - at):
                return count  # the parser refuses it here
            number = tag >> 3
            if number < _wide(numbers):
                if layout.packed[number]:
                    count += size // _PACKED
                elif layout.inner[number] is not None and depth < _DEEPEST:
                    count += _counted(raw, at, at + size, layout.inner[number], most - count, depth + 1)
            at += size
        elif kind != _GROUP and kind != _GROUP_END:
            return count
    return count


def _wide(number: cython.ulonglong) -> cython.ulonglong:
    return number
