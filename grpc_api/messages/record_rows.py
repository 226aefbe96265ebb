"""Encodes columns of decoded records as `tidelog.v1.ReadResponse`, without a Python object per record.

Cython in pure-Python mode; its C types are in `record_rows.pxd`, and uncompiled it gives the same bytes.

Invariant: the bytes equal protobuf's for the same records. The caller passes only columns that have as many rows as the batch
states, and timestamps that fit 64 bits of microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

if TYPE_CHECKING:
    from storage_tiers.records.columns import BytesBuffers, ColumnBatch

# Field numbers and wire types of ReadResponse, ReadRecord and RecordHeader.
_RECORDS, _PARTITION, _OFFSET, _TIMESTAMP, _KEY, _VALUE, _HEADERS = 0x0A, 0x08, 0x10, 0x18, 0x22, 0x2A, 0x32
_NAME, _CONTENT = 0x0A, 0x12


class RowColumn:
    """A column of variable width or of lists, from `columns.BytesBuffers`."""

    def __init__(self, column: BytesBuffers) -> None:
        self.ends = memoryview(column.ends).cast("i")
        self.validity = memoryview(column.validity)
        self.data = memoryview(column.data)

    def is_null(self, row: cython.Py_ssize_t) -> cython.bint:
        return not self.validity[row >> 3] >> (row & 7) & 1

    def length(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.ends[row + 1] - self.ends[row]


class RowEncoder:
    """Encodes the records of one partition, one batch of columns per call."""

    def __init__(self, partition: cython.longlong) -> None:
        self.partition = partition
        self.buffer = bytearray(4096)
        self.out = memoryview(self.buffer)
        self.at = 0

    def encode(self, columns: ColumnBatch) -> bytes:
        """Encodes the columns as one ReadResponse."""
        self.offsets = memoryview(columns.offsets).cast("q")
        self.times = memoryview(columns.timestamps).cast("q")
        self.keys, self.values = RowColumn(columns.keys), RowColumn(columns.values)
        self.headers = RowColumn(columns.headers)
        self.names, self.contents = RowColumn(columns.names), RowColumn(columns.contents)
        self.at = 0
        row: cython.Py_ssize_t
        for row in range(columns.rows):
            self._encode_row(row)
        return bytes(self.out[: self.at])

    def _encode_row(self, row: cython.Py_ssize_t) -> None:
        milliseconds: cython.longlong = self.times[row] // 1000
        size: cython.Py_ssize_t = _number_size(self.partition) + _number_size(self.offsets[row])
        size += _number_size(milliseconds) + _bytes_size(self.keys, row) + _bytes_size(self.values, row)
        header: cython.Py_ssize_t
        inner: cython.Py_ssize_t
        for header in range(self.headers.ends[row], self.headers.ends[row + 1]):
            inner = self._header_size(header)
            size += 1 + _varint_size(inner) + inner
        self._reserve(size)
        self._put(_RECORDS, size)
        self._put_number(_PARTITION, self.partition)
        self._put_number(_OFFSET, self.offsets[row])
        self._put_number(_TIMESTAMP, milliseconds)
        self._put_bytes(_KEY, self.keys, row)
        self._put_bytes(_VALUE, self.values, row)
        for header in range(self.headers.ends[row], self.headers.ends[row + 1]):
            self._put(_HEADERS, self._header_size(header))
            if self.names.length(header):
                self._put_bytes(_NAME, self.names, header)
            self._put_bytes(_CONTENT, self.contents, header)

    def _header_size(self, header: cython.Py_ssize_t) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t = _bytes_size(self.contents, header)
        return size + _bytes_size(self.names, header) if self.names.length(header) else size

    def _reserve(self, size: cython.Py_ssize_t) -> None:
        """Makes room for a record of `size` bytes with its tag and length."""
        least: cython.Py_ssize_t = self.at + size + 11
        if least > len(self.buffer):
            larger = bytearray(max(least, 2 * len(self.buffer)))
            larger[: self.at] = self.out[: self.at]
            self.buffer = larger
            self.out = memoryview(larger)

    def _put_number(self, tag: cython.int, number: cython.longlong) -> None:
        """Writes nothing for 0, as protobuf does."""
        if number:
            self._put(tag, number)

    def _put_bytes(self, tag: cython.int, column: RowColumn, row: cython.Py_ssize_t) -> None:
        if column.is_null(row):
            return
        length: cython.Py_ssize_t = column.length(row)
        start: cython.Py_ssize_t = column.ends[row]
        self._put(tag, length)
        if length:
            if cython.compiled:
                memcpy(cython.address(self.out[self.at]), cython.address(column.data[start]), length)
            else:
                self.out[self.at : self.at + length] = column.data[start : start + length]
            self.at += length

    def _put(self, tag: cython.int, number: cython.longlong) -> None:
        raw: cython.ulonglong = _unsigned(number)
        self.out[self.at] = tag
        self.at += 1
        while raw > 0x7F:
            self.out[self.at] = raw & 0x7F | 0x80
            raw >>= 7
            self.at += 1
        self.out[self.at] = raw
        self.at += 1


def _unsigned(number: cython.longlong) -> cython.ulonglong:
    if cython.compiled:
        return number
    else:
        return number & 0xFFFF_FFFF_FFFF_FFFF


def _varint_size(number: cython.longlong) -> cython.int:
    raw: cython.ulonglong = _unsigned(number)
    size: cython.int = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


def _number_size(number: cython.longlong) -> cython.int:
    return 1 + _varint_size(number) if number else 0


def _bytes_size(column: RowColumn, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    if column.is_null(row):
        return 0
    length: cython.Py_ssize_t = column.length(row)
    return 1 + _varint_size(length) + length
