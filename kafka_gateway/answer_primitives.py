"""The primitive types of Kafka's protocol that hand-written answers use (compact forms: KIP-482)."""

from __future__ import annotations

import struct

_INT16 = struct.Struct(">h").pack
_INT32 = struct.Struct(">i").pack


def varint(value: int) -> bytes:
    """Encodes an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def array_size(count: int, flexible: bool) -> bytes:
    """Encodes the length field of an array. A `count` of -1 means null."""
    return varint(count + 1) if flexible else _INT32(count)


def text(value: bytes, flexible: bool) -> bytes:
    return varint(len(value) + 1) + value if flexible else _INT16(len(value)) + value


def nullable_text(value: bytes | None, flexible: bool) -> bytes:
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    return text(value, flexible)


def bytes_size(size: int, flexible: bool) -> bytes:
    """Encodes the length field before `size` bytes of records."""
    return varint(size + 1) if flexible else _INT32(size)
