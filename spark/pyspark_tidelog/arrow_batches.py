"""Turns runs of record batches into Arrow record batches: wraps the column decoder's buffers in Arrow's types without a copy.

Invariants: every batch has exactly the columns of the schema, in its order. Other columns are not built.
`storage_tiers.records.columns` limits the size of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from storage_tiers.records.columns import MAX_BYTES, MAX_ROWS, WANTED, BytesBuffers, ColumnBatch, ColumnDecoder
from storage_tiers.types import AbortedTransaction


class ArrowDecoder:
    """`add` takes whole, verified batches and yields a record batch when enough rows are decoded. `finish` yields the rest."""

    def __init__(
        self, schema: pa.Schema, topic: str, partition: int, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._schema = schema
        self._decoder = ColumnDecoder(
            sum(WANTED.get(name, 0) for name in schema.names), max_rows=max_rows, max_bytes=max_bytes
        )
        # All rows have the same topic and partition, so these two columns are built once and sliced.
        self._topic = pa.repeat(pa.scalar(topic, pa.string()), max_rows)
        self._partition = pa.repeat(pa.scalar(partition, pa.int32()), max_rows)

    def add(
        self, data: memoryview, start: int, stop: int, aborted: Sequence[AbortedTransaction]
    ) -> Iterator[pa.RecordBatch]:
        """Decodes records of offsets [start, stop) except those of `aborted` transactions. Raises the errors of
        `ColumnDecoder.add`."""
        return map(self._arrow, self._decoder.add(data, start, stop, aborted))

    def finish(self) -> Iterator[pa.RecordBatch]:
        return map(self._arrow, self._decoder.finish())

    def _arrow(self, batch: ColumnBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self._column(batch, field) for field in self._schema], schema=self._schema)

    def _column(self, batch: ColumnBatch, field: pa.Field) -> pa.Array:
        rows = batch.rows
        match field.name:
            case "key":
                return _bytes(batch.keys, field.type)
            case "value":
                return _bytes(batch.values, field.type)
            case "topic":
                return self._topic.slice(0, rows)
            case "partition":
                return self._partition.slice(0, rows)
            case "offset":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(batch.offsets)], 0)
            case "timestamp":
                validity = _validity(batch.timestamp_nulls, batch.timestamp_validity)
                buffers = [validity, pa.py_buffer(batch.timestamps)]
                return pa.Array.from_buffers(field.type, rows, buffers, batch.timestamp_nulls)
            case "timestampType":
                return pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(batch.timestamp_types)], 0)
            case _:
                return _headers(batch, field.type)


def _validity(nulls: int, bits: bytearray) -> pa.Buffer | None:
    return pa.py_buffer(bits) if nulls else None


def _bytes(column: BytesBuffers, kind: pa.DataType) -> pa.Array:
    buffers = [_validity(column.nulls, column.validity), pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.rows, buffers, column.nulls)


def _headers(batch: ColumnBatch, kind: pa.DataType) -> pa.Array:
    pair = kind.value_type
    children = [_bytes(batch.names, pair.field(0).type), _bytes(batch.contents, pair.field(1).type)]
    pairs = pa.Array.from_buffers(pair, batch.names.rows, [None], 0, 0, children)
    lists = batch.headers
    buffers = [_validity(lists.nulls, lists.validity), pa.py_buffer(lists.ends)]
    return pa.Array.from_buffers(kind, lists.rows, buffers, lists.nulls, 0, [pairs])
