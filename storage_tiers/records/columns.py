"""Decodes record batches into columns, for every reader of more than a few records.

It yields buffers in Arrow's layout without using Arrow's library; `pyspark_tidelog.arrow_batches` wraps them. Native kernels
(`column_walk`, `column_buffers`) do the work. This module does the work that occurs at most once per batch: inflating, errors,
and header names that are not UTF-8.

Invariants: every record equals the plain decoder's, or the decoder raises. A column batch has at most `max_rows` rows, and its
records have at most `max_bytes` in total unless a single one is larger. Memory beside the input is thus one inflated record
batch (`codecs.inflation_bound`) and columns of about `max_bytes` (up to ten times as much if records consist of empty headers).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from storage_tiers.errors import CorruptRecord
from storage_tiers.records import walker
from storage_tiers.records.batch import (
    ATTRIBUTES,
    BATCH_LENGTH,
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    Buffer,
    read_header,
)
from storage_tiers.records.codecs import decompress, inflation_bound
from storage_tiers.records.column_buffers import HEADERS, KEY, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, VALUE, Columns
from storage_tiers.records.column_walk import BAD_BATCH, BAD_TIMESTAMP, COMPRESSED, END, FULL, Walk
from storage_tiers.records.decoder import whole_header
from storage_tiers.types import AbortedTransaction

MAX_ROWS = 16_384
MAX_BYTES = 8 << 20
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_INT32 = struct.Struct(">i")

#: The columns by name, as bits of a decoder's `wanted`.
WANTED = {
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    "timestampType": TIMESTAMP_TYPE,
    "key": KEY,
    "value": VALUE,
    "headers": HEADERS,
}


class BytesBuffers(NamedTuple):
    """A column of variable width: `rows` + 1 end positions of 32 bits, the first one zero; a validity bit per row; the data
    (empty for a list)."""

    rows: int
    nulls: int
    ends: bytearray
    validity: bytearray
    data: bytearray


class ColumnBatch(NamedTuple):
    """Buffers may be longer than their rows need; the buffers of unwanted columns are empty.

    Offsets and timestamps (µs since 1970; null if they do not fit 64 bits) are 64-bit, timestamp types 32-bit. `headers` are
    lists of (`names`, `contents`), null for a record without headers.
    """

    rows: int
    offsets: bytearray
    timestamps: bytearray
    timestamp_nulls: int
    timestamp_validity: bytearray
    timestamp_types: bytearray
    keys: BytesBuffers
    values: BytesBuffers
    headers: BytesBuffers
    names: BytesBuffers
    contents: BytesBuffers


class ColumnDecoder:
    """Decodes runs of whole record batches and yields column batches as they fill; `finish` yields the rest."""

    def __init__(self, wanted: int, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> None:
        self._columns = Columns(wanted, max_rows, max_bytes)
        self._room = bytearray()
        #: Bytes of the inflated batch that is being decoded; 0 between batches and in one that was not compressed.
        self.inflated_bytes = 0

    def add(
        self, data: Buffer, start: int = 0, stop: int = _INT64_MAX, aborted: Sequence[AbortedTransaction] = ()
    ) -> Iterator[ColumnBatch]:
        """Adds the records with offsets in [start, stop), except markers and the records of `aborted` transactions. Checks each
        batch's CRC-32C. Ignores a partial batch at the end. Raises CorruptRecord, UnsupportedMessageFormat,
        UnsupportedCompression, or RecordTooLarge beyond the inflation bound. After an error, discard the decoder: the rows that
        it has not yielded are lost.
        """
        known = sorted((each.producer_id, each.first_offset, each.last_offset) for each in aborted)
        triples = array("q", [number for triple in known for number in triple])
        return self._decoded(data, Walk(data, start, stop, triples, True), start, stop)

    def finish(self) -> Iterator[ColumnBatch]:
        if self._columns.rows:
            yield self._take_batch()

    def _decoded(self, data: Buffer, walk: Walk, start: int, stop: int) -> Iterator[ColumnBatch]:
        while True:
            reason = walk.decode(self._columns)
            if reason == FULL:
                yield self._take_batch()
            elif reason == END:
                return
            elif reason == COMPRESSED:
                image = self._inflated(memoryview(data)[walk.batch : walk.batch_end])
                self.inflated_bytes = len(image)
                # The outer walk has already skipped batches of aborted transactions.
                yield from self._decoded(image, Walk(image, start, stop, _NOTHING_ABORTED, False), start, stop)
                self.inflated_bytes = 0
                walk.skip()
            else:
                raise _fault(data, walk, reason)

    def _inflated(self, batch: memoryview) -> memoryview:
        """The same batch uncompressed, with a stale CRC. The result is valid until the next call."""
        header = read_header(batch)
        # The length field of the inflated batch has 32 bits, too.
        bound = min(inflation_bound(header.size), _INT32_MAX - HEADER_BYTES)
        image = decompress(header.codec, batch[HEADER_BYTES:], max_bytes=bound, headroom=HEADER_BYTES, room=self._room)
        image[:HEADER_BYTES] = batch[:HEADER_BYTES]
        _INT32.pack_into(image, BATCH_LENGTH, len(image) - LENGTH_OVERHEAD)
        image[ATTRIBUTES + 1] &= ~CODEC_MASK
        room = image.obj
        if isinstance(room, bytearray) and len(self._room) < len(room) <= MAX_BYTES:
            self._room = room
        return image

    def _take_batch(self) -> ColumnBatch:
        foreign = self._columns.foreign
        rows, time_nulls, numbers, columns = self._columns.take()
        offsets, times, time_validity, types = (
            _cut(buffer, -(-bits * rows // 8)) for buffer, bits in zip(numbers, (64, 64, 1, 32), strict=True)
        )
        keys, values, headers, names, contents = (_buffers(*column) for column in columns)
        if foreign:
            names = _in_utf8(names)
        return ColumnBatch(
            rows, offsets, times, time_nulls, time_validity, types, keys, values, headers, names, contents
        )


def _buffers(rows: int, nulls: int, ends: bytearray, validity: bytearray, data: bytearray) -> BytesBuffers:
    data = _cut(data, memoryview(ends).cast("i")[rows] if rows else 0)
    return BytesBuffers(rows, nulls, _cut(ends, 4 * rows + 4), _cut(validity, (rows + 7) // 8), data)


def _cut(buffer: bytearray, size: int) -> bytearray:
    """The buffer, or a copy of its first `size` bytes if these are few: a few rows must not keep the memory of thousands."""
    return buffer[:size] if 2 * size < len(buffer) else buffer


_NOTHING_ABORTED = array("q")


def _fault(data: Buffer, walk: Walk, reason: int) -> Exception:
    at = walk.batch
    header = read_header(data, at)
    if reason == BAD_BATCH:
        whole_header(memoryview(data)[at : at + header.size])
    fault = "its timestamp does not fit 64 bits" if reason == BAD_TIMESTAMP else walker.RECORD_FAULTS[reason]
    return CorruptRecord(f"record {walk.index} of {header.count} in the batch at offset {header.base_offset}: {fault}")


def _in_utf8(names: BytesBuffers) -> BytesBuffers:
    """The names as the plain decoder reads them: bytes that are not UTF-8 become U+FFFD."""
    ends = memoryview(names.ends).cast("i")[: names.rows + 1]
    found = [names.data[start:end].decode(errors="replace").encode() for start, end in pairwise(ends)]
    read = array("i", [0])
    for name in found:
        read.append(read[-1] + len(name))
    return BytesBuffers(names.rows, 0, bytearray(read.tobytes()), names.validity, bytearray(b"".join(found)))
