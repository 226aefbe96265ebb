"""Turns column batches back into rows by Arrow's specified layout alone, under each form of the column kernel."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from storage_tiers.records import column_buffers, column_walk, columns
from storage_tiers.records.columns import MAX_BYTES, MAX_ROWS, WANTED, BytesBuffers, ColumnBatch, ColumnDecoder
from storage_tiers.records.decoder import Record
from storage_tiers.types import AbortedTransaction

EVERYTHING = sum(WANTED.values())
_MOST_MS = ((1 << 63) - 1) // 1000


class Row(NamedTuple):
    offset: int
    microseconds: int | None
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def as_row(record: Record) -> Row:
    """The row that the column decoder must give for the plain decoder's record."""
    known = -_MOST_MS <= record.timestamp <= _MOST_MS
    return Row(
        record.offset,
        record.timestamp * 1000 if known else None,
        record.timestamp_type,
        record.key,
        record.value,
        record.headers,
    )


def rows_of(batch: ColumnBatch) -> list[Row]:
    names, contents = _cells(batch.names), _cells(batch.contents)
    headers = [
        tuple(
            ((name or b"").decode(), content) for name, content in zip(names[low:high], contents[low:high], strict=True)
        )
        for low, high in pairwise(_ends(batch.headers))
    ]
    assert [bool(found) for found in headers] == [_is_set(batch.headers.validity, row) for row in range(batch.rows)]
    assert batch.headers.nulls == headers.count(())
    assert all(name is not None for name in names)
    times = [
        time if _is_set(batch.timestamp_validity, row) else None
        for row, time in enumerate(memoryview(batch.timestamps).cast("q")[: batch.rows])
    ]
    assert times.count(None) == batch.timestamp_nulls
    offsets = memoryview(batch.offsets).cast("q")[: batch.rows]
    types = memoryview(batch.timestamp_types).cast("i")[: batch.rows]
    return list(map(Row, offsets, times, types, _cells(batch.keys), _cells(batch.values), headers))


def _ends(column: BytesBuffers) -> Sequence[int]:
    ends = memoryview(column.ends).cast("i")[: column.rows + 1].tolist() if column.rows else [0]
    assert ends[0] == 0
    assert ends == sorted(ends)
    return ends


def _cells(column: BytesBuffers) -> list[bytes | None]:
    cells = [
        bytes(column.data[low:high]) if _is_set(column.validity, row) else None
        for row, (low, high) in enumerate(pairwise(_ends(column)))
    ]
    assert cells.count(None) == column.nulls
    return cells


def _is_set(bits: bytearray, row: int) -> bool:
    return bool(bits[row >> 3] >> (row & 7) & 1)


def decoded(
    runs: Iterable[bytes],
    start: int = 0,
    stop: int = (1 << 63) - 1,
    aborted: Sequence[AbortedTransaction] = (),
    *,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> list[Row]:
    """All rows that the column decoder gives for the runs."""
    decoder = ColumnDecoder(EVERYTHING, max_rows=max_rows, max_bytes=max_bytes)
    found = [row for run in runs for batch in decoder.add(run, start, stop, aborted) for row in rows_of(batch)]
    return found + [row for batch in decoder.finish() for row in rows_of(batch)]


# --- the kernel's two forms -------------------------------------------------------------------------------------------
def source(module: ModuleType) -> str:
    folder, _, name = (module.__file__ or "").rpartition("/")
    return f"{folder}/{name.partition('.')[0]}.py"


def _plain(module: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plain_{module.__name__.rpartition('.')[2]}", source(module))
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _plain_without_cython(module: ModuleType) -> ModuleType:
    modules: dict[str, Any] = sys.modules
    kept = modules.get("cython")
    modules["cython"] = None  # makes the import fail
    try:
        return _plain(module)
    finally:
        del modules["cython"]
        if kept is not None:
            modules["cython"] = kept


KERNELS = {
    "built": (column_buffers, column_walk),
    "plain": (_plain(column_buffers), _plain(column_walk)),
    "plain without cython": (_plain_without_cython(column_buffers), _plain_without_cython(column_walk)),
}


@contextmanager
def kernel(name: str) -> Iterator[None]:
    """Makes the column decoder use the named kernel."""
    buffers, walk = KERNELS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "Columns", buffers.Columns)
        patch.setattr(columns, "Walk", walk.Walk)
        yield
