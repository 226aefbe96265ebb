"""Runs of record batches as Arrow record batches: the plain way, record by record. A faster decoder takes this place.

What a decoder is to Spark's reader: `add` takes whole, verified batches with the offsets wanted of them and the aborted
transactions to leave out, and yields columns as soon as there are enough; `finish` yields the rest.

Invariants: exactly the schema given, in its order; at most MAX_ROWS rows a batch, and a batch ends with the record that
reaches MAX_BYTES, so that memory is bounded by one record more. Columns that are not in the schema are not built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from storage_tiers.records.decoder import Record, decode
from storage_tiers.types import AbortedTransaction

MAX_ROWS = 16_384
MAX_BYTES = 8 << 20
#: Milliseconds that a 64-bit number of microseconds holds; a record's own clock may say anything.
_MOST_MS = ((1 << 63) - 1) // 1000


class ArrowDecoder(Protocol):
    def add(
        self, data: memoryview, start: int, stop: int, aborted: Sequence[AbortedTransaction]
    ) -> Iterator[pa.RecordBatch]:
        """Records of offsets [start, stop). CorruptRecord and its siblings of the plain decoder."""

    def finish(self) -> Iterator[pa.RecordBatch]: ...


class PlainArrowDecoder:
    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        cells = _cells(topic, partition)
        self._cells: list[Callable[[Record], Any]] = [cells[name] for name in schema.names]
        self._records: list[Record] = []
        self._bytes = 0

    def add(
        self, data: memoryview, start: int, stop: int, aborted: Sequence[AbortedTransaction]
    ) -> Iterator[pa.RecordBatch]:
        for record in decode(data, start_offset=start, end_offset=stop, aborted=aborted):
            self._records.append(record)
            self._bytes += _size(record)
            if len(self._records) == MAX_ROWS or self._bytes >= MAX_BYTES:
                yield self._taken()

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._records:
            yield self._taken()

    def _taken(self) -> pa.RecordBatch:
        records, self._records, self._bytes = self._records, [], 0
        arrays = [
            pa.array([cell(record) for record in records], type=field.type)
            for cell, field in zip(self._cells, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _cells(topic: str, partition: int) -> dict[str, Callable[[Record], Any]]:
    return {
        "key": lambda record: record.key,
        "value": lambda record: record.value,
        "topic": lambda record: topic,
        "partition": lambda record: partition,
        "offset": lambda record: record.offset,
        "timestamp": _microseconds,
        "timestampType": lambda record: record.timestamp_type,
        "headers": lambda record: record.headers or None,
    }


def _microseconds(record: Record) -> int | None:
    """Null beyond the years that Spark's timestamps reach (292,000 before and after 1970)."""
    return record.timestamp * 1000 if -_MOST_MS <= record.timestamp <= _MOST_MS else None


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)
