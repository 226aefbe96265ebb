"""Zigzag variable-length integers as record batches hold them: seven bits per byte, least significant group first.

The plain implementation, for building and for the plain decoder; the walker has its own in C. Both accept non-minimal
encodings, as Kafka does, and refuse a number beyond its 32 or 64 bits, where Kafka drops the upper bits.
"""

from __future__ import annotations

from storage_tiers.errors import CorruptRecord
from storage_tiers.records.checksum import Buffer

#: Most bytes of a 32-bit varint and of a 64-bit varlong.
MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10


def encode(number: int) -> bytes:
    """A varint or varlong (the encodings agree). ValueError unless `number` fits 64 bits, signed."""
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{number} does not fit 64 bits")
    raw = (number << 1) if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def decode_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The 32-bit number at `position`, and the position after it. CorruptRecord if it is cut short or too wide."""
    return _decode(buffer, position, MAX_VARINT_BYTES, 32)


def decode_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """The 64-bit number at `position`, and the position after it. CorruptRecord if it is cut short or too wide."""
    return _decode(buffer, position, MAX_VARLONG_BYTES, 64)


def _decode(buffer: Buffer, position: int, max_bytes: int, bits: int) -> tuple[int, int]:
    if position < len(buffer) and buffer[position] < 0x80:  # most are one byte
        raw = buffer[position]
        return (raw >> 1) ^ -(raw & 1), position + 1
    raw = 0
    for index in range(max_bytes):
        if position + index >= len(buffer):
            raise CorruptRecord(f"the bytes end inside the varint at {position}")
        byte = buffer[position + index]
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if raw >> bits:
                break
            return (raw >> 1) ^ -(raw & 1), position + index + 1
    raise CorruptRecord(f"the varint at {position} does not fit {bits} bits")
