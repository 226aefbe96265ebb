"""Reads a coordinator's log in order: records, up to RECORDS_AT_ONCE at a time, and the markers between them.

Pure. A coordinator may have millions of records to load, so the native column decoder reads them, and Python objects are made
only for keys and values. Invariants: every batch's CRC is checked before its records are returned; the records of one
`Replayed` belong to one producer's transaction, or to none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from storage_tiers.errors import CorruptRecord
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.columns import WANTED, BytesBuffers, ColumnBatch, ColumnDecoder
from storage_tiers.records.decoder import decode_control
from storage_tiers.types import NO_PRODUCER_ID

#: Most records that are decoded at once.
RECORDS_AT_ONCE = 128
_COLUMNS = WANTED["offset"] | WANTED["timestamp"] | WANTED["key"] | WANTED["value"]


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    offset: int
    producer_id: int
    commit: bool


class Replayed(NamedTuple):
    """Some records in their order. `producer_id` is that of their transaction, -1 without one; `times` are in ms."""

    producer_id: int
    offsets: list[int]
    keys: list[bytes]
    values: list[bytes | None]
    times: list[int]


def replay(piece: bytes) -> Iterator[Marker | Replayed]:
    """Yields the records and markers of the whole batches of `piece`. Raises CorruptRecord (also for a record without a key),
    UnsupportedMessageFormat or UnsupportedCompression."""
    view = memoryview(piece)
    start, end, producer_id = 0, 0, NO_PRODUCER_ID
    for position, header in headers(view):
        producer = header.producer_id if header.transactional else NO_PRODUCER_ID
        if header.control or producer != producer_id:
            yield from _records(view[start:position], producer_id)
            start, producer_id = position, producer
        end = position + header.size
        if header.control:
            control = decode_control(view[position:end])
            if control is not None:
                yield Marker(header.base_offset, header.producer_id, control.kind is ControlKind.COMMIT)
            start = end
    yield from _records(view[start:end], producer_id)


def _records(batches: memoryview, producer_id: int) -> Iterator[Replayed]:
    decoder = ColumnDecoder(_COLUMNS, max_rows=RECORDS_AT_ONCE)
    for columns in decoder.add(batches):
        yield _replayed(columns, producer_id)
    for columns in decoder.finish():
        yield _replayed(columns, producer_id)


def _replayed(columns: ColumnBatch, producer_id: int) -> Replayed:
    keys, times = [], memoryview(columns.timestamps).cast("q")
    offsets = memoryview(columns.offsets).cast("q")[: columns.rows].tolist()
    for row, key in enumerate(_fields(columns.keys)):
        if key is None:
            raise CorruptRecord(f"the record at offset {offsets[row]} has no key")
        keys.append(key)
    values = _fields(columns.values)
    return Replayed(producer_id, offsets, keys, values, [each // 1000 for each in times[: columns.rows]])


def _fields(column: BytesBuffers) -> list[bytes | None]:
    data, ends = bytes(column.data), memoryview(column.ends).cast("i")[: column.rows + 1]
    fields: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    if column.nulls:
        for row in range(column.rows):
            if not column.validity[row >> 3] >> (row & 7) & 1:
                fields[row] = None
    return fields
