"""Decodes record batches into messages: the native decoder's columns become tuples, a thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat

from grpc_api.sdk.values import Header, Message
from storage_tiers.records.column_buffers import HEADERS, KEY, OFFSET, TIMESTAMP, VALUE
from storage_tiers.records.columns import BytesBuffers, ColumnBatch, ColumnDecoder
from storage_tiers.records.decoder import decode
from storage_tiers.types import AbortedTransaction

#: The most records, and the most bytes of records, decoded at a time, in about a millisecond.
ROWS_A_TURN = 1024
BYTES_A_TURN = 1 << 20

_COLUMNS = OFFSET | TIMESTAMP | KEY | VALUE | HEADERS
_NO_HEADERS: Sequence[Header] = ()


def messages(
    topic: str, partition: int, records: bytes | memoryview, start: int, aborted: Sequence[AbortedTransaction]
) -> Iterator[Message]:
    """The records of whole batches from offset `start` on, without markers and records of aborted transactions."""
    decoder = ColumnDecoder(_COLUMNS, max_rows=ROWS_A_TURN, max_bytes=BYTES_A_TURN)
    for columns in chain(decoder.add(records, start, aborted=aborted), decoder.finish()):
        if columns.timestamp_nulls:
            # Rare records have timestamps near the end of the range, which a column of microseconds cannot hold.
            first, last = _offsets(columns)[0], _offsets(columns)[-1]
            yield from _plain(topic, partition, records, first, last + 1, aborted)
        else:
            yield from _rows(topic, partition, columns)


def _offsets(columns: ColumnBatch) -> memoryview:
    return memoryview(columns.offsets).cast("q")[: columns.rows]


def _rows(topic: str, partition: int, columns: ColumnBatch) -> Iterator[Message]:
    fields = zip(
        _offsets(columns),
        memoryview(columns.timestamps).cast("q"),
        _values(columns.keys),
        _values(columns.values),
        _headers(columns),
        strict=False,  # buffers are longer than their rows, and the empty headers repeat without end
    )
    for offset, microseconds, key, value, headers in fields:
        yield Message(topic, partition, offset, microseconds // 1000, key, value, headers)


def _values(column: BytesBuffers) -> list[bytes | None]:
    data = bytes(column.data)
    found: list[bytes | None] = [data[start:end] for start, end in _spans(column)]
    if column.nulls:
        validity = column.validity
        return [value if validity[row >> 3] >> (row & 7) & 1 else None for row, value in enumerate(found)]
    return found


def _headers(columns: ColumnBatch) -> Iterator[Sequence[Header]]:
    if columns.headers.nulls == columns.rows:
        return repeat(_NO_HEADERS)
    names = [(name or b"").decode(errors="replace") for name in _values(columns.names)]
    pairs = list(zip(names, _values(columns.contents), strict=True))
    return (tuple(pairs[start:end]) for start, end in _spans(columns.headers))


def _spans(column: BytesBuffers) -> Iterator[tuple[int, int]]:
    """The start and end of each row's bytes or list."""
    return pairwise(memoryview(column.ends).cast("i")[: column.rows + 1])


def _plain(
    topic: str,
    partition: int,
    records: bytes | memoryview,
    start: int,
    end: int,
    aborted: Sequence[AbortedTransaction],
) -> Iterator[Message]:
    for each in decode(records, start_offset=start, end_offset=end, aborted=aborted):
        yield Message(topic, partition, each.offset, each.timestamp, each.key, each.value, each.headers)
