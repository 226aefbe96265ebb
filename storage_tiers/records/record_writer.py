"""Encodes records one after another into the payload of a batch: the producer's counterpart of the column decoder.

A producer encodes each record when it receives it, so that a waiting batch is bytes and not objects. Cython in pure-Python
mode: `record_writer.pxd` holds the C types, and uncompiled it produces the same bytes.

Invariants: the bytes equal those of `builder.encode_record`; a refused record leaves nothing behind. The caller keeps `size`
within the limit of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

from storage_tiers.records.checksum import crc32c
from storage_tiers.records.varint import encode

NO_HEADERS = b"\x00"

#: Positions in a batch: of the first record, of the first byte that the CRC covers, and of the first byte that the length
#: counts.
_HEADER, _COVERED_FROM, _COUNTED_FROM = 61, 21, 12

_FIRST_ROOM = 4096


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """A record's headers as they are encoded in it: their number, then names and values."""
    parts = [encode(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode(len(encoded)), encoded)
        parts += (encode(-1),) if value is None else (encode(len(value)), value)
    return b"".join(parts)


class RecordWriter:
    """Holds `count` records in `size` bytes. Timestamps are in ms since 1970, and -1 before the first record."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.base_timestamp = self.max_timestamp = -1
        self.room = _FIRST_ROOM
        self.buffer = bytearray(_FIRST_ROOM)
        self.data = memoryview(self.buffer)

    def append(self, key: bytes | None, value: bytes | None, headers: bytes, timestamp: cython.longlong) -> None:
        """Adds a record; `headers` is the result of `encode_headers`."""
        # No part is larger than an object can be, so the sum fits 64 bits.
        key_length: cython.longlong = -1 if key is None else len(key)
        value_length: cython.longlong = -1 if value is None else len(value)
        delta: cython.longlong = timestamp - self.base_timestamp if self.count else 0
        body: cython.longlong = 1 + _varint_size(delta) + _varint_size(self.count)
        body += _varint_size(key_length) + max(key_length, 0) + _varint_size(value_length) + max(value_length, 0)
        body += len(headers)
        end: cython.longlong = self.size + _varint_size(body) + body
        if end > self.room:
            self._grow(end)
        data: cython.p_uchar = cython.address(self.data[0]) if cython.compiled else self.data
        at: cython.Py_ssize_t = _put_varint(data, self.size, body)
        data[at] = 0
        at = _put_varint(data, at + 1, delta)
        at = _put_varint(data, at, self.count)
        at = _put_field(data, at, key, key_length)
        at = _put_field(data, at, value, value_length)
        _put_bytes(data, at, headers, len(headers))
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.size = end

    def payload(self) -> bytes:
        """All records so far."""
        return bytes(self.data[: self.size])

    def _grow(self, least: cython.longlong) -> None:
        larger = bytearray(max(least, 2 * self.room))
        larger[: self.size] = self.data[: self.size]
        self.room = len(larger)
        self.buffer = larger
        self.data = memoryview(larger)


def encode_plain_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    timestamp: cython.longlong,
    attributes: cython.longlong,
    producer_id: cython.longlong,
    producer_epoch: cython.longlong,
) -> bytes:
    """An uncompressed batch of keys and values (at least one) at base offset 0, all with one timestamp, without headers and
    without a sequence. Coordinators write such batches."""
    count: cython.Py_ssize_t = len(records)
    size: cython.Py_ssize_t = _HEADER
    offset_delta: cython.Py_ssize_t
    for offset_delta in range(count):
        key, value = _as_tuple(records[offset_delta])
        body: cython.longlong = _plain_body(key, value, offset_delta)
        size += _varint_size(body) + body
    # C writes each byte of the result itself, because a copy takes a quarter of the time of a small batch.
    out: Any = PyBytes_FromStringAndSize(cython.NULL, size) if cython.compiled else bytearray(size)
    data: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out)) if cython.compiled else memoryview(out)
    at: cython.Py_ssize_t = _HEADER
    for offset_delta in range(count):
        key, value = _as_tuple(records[offset_delta])
        at = _put_varint(data, at, _plain_body(key, value, offset_delta))
        data[at] = data[at + 1] = 0
        at = _put_varint(data, at + 2, offset_delta)
        at = _put_field(data, at, key, len(key))
        at = _put_field(data, at, value, -1 if value is None else len(value))
        data[at] = 0
        at += 1
    _put_integer(data, 0, 0, 8)
    _put_integer(data, 8, size - _COUNTED_FROM, 4)
    _put_integer(data, 12, -1, 4)  # the leader's epoch, which the log sets
    data[16] = 2  # magic
    _put_integer(data, 21, attributes, 2)
    _put_integer(data, 23, count - 1, 4)
    _put_integer(data, 27, timestamp, 8)
    _put_integer(data, 35, timestamp, 8)
    _put_integer(data, 43, producer_id, 8)
    _put_integer(data, 51, producer_epoch, 2)
    _put_integer(data, 53, -1, 4)
    _put_integer(data, 57, count, 4)
    _put_integer(data, 17, crc32c(memoryview(out)[_COVERED_FROM:]), 4)
    return out if cython.compiled else bytes(out)


def _as_tuple(record: Any) -> tuple[Any, ...]:
    """The record, which may be a NamedTuple, typed as a tuple: C then reads its fields without a call for each."""
    if not isinstance(record, tuple):
        raise TypeError(f"a record is a tuple, not {type(record).__name__}")
    return cython.cast(tuple, record) if cython.compiled else record


def _plain_body(key: bytes, value: bytes | None, offset_delta: cython.longlong) -> cython.longlong:
    key_length: cython.longlong = len(key)
    value_length: cython.longlong = -1 if value is None else len(value)
    # Three bytes: attributes, the timestamp's delta, and the number of headers.
    fixed: cython.longlong = 3 + _varint_size(offset_delta) + _varint_size(key_length) + _varint_size(value_length)
    return fixed + key_length + max(value_length, 0)


def _put_integer(data: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong, size: cython.int) -> None:
    """Writes `number` in `size` bytes, big-endian, as two's complement."""
    nth: cython.int
    for nth in range(size):
        data[at + nth] = number >> 8 * (size - 1 - nth) & 0xFF


def _varint_size(number: cython.longlong) -> cython.int:
    raw: cython.ulonglong = _zigzag(number)
    size: cython.int = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


def _zigzag(number: cython.longlong) -> cython.ulonglong:
    raw: cython.ulonglong = number if number >= 0 else -(number + 1)
    return raw << 1 if number >= 0 else (raw << 1) | 1


def _put_varint(data: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.ulonglong = _zigzag(number)
    while raw > 0x7F:
        data[at] = raw & 0x7F | 0x80
        raw >>= 7
        at += 1
    data[at] = raw
    return at + 1


def _put_field(
    data: cython.p_uchar, at: cython.Py_ssize_t, field: bytes | None, length: cython.longlong
) -> cython.Py_ssize_t:
    at = _put_varint(data, at, length)
    if length > 0:
        _put_bytes(data, at, field, length)
        at += length
    return at


def _put_bytes(data: cython.p_uchar, at: cython.Py_ssize_t, source: bytes | None, length: cython.Py_ssize_t) -> None:
    if cython.compiled:
        raw: cython.p_const_uchar = source
        memcpy(data + at, raw, length)
    else:
        data[at : at + length] = source
