"""Runs of whole batches cut from chunks of any size, and the check that no batch is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tidelog.batches import runs
from pyspark_tidelog.plan import ScanPiece
from storage_tiers.errors import LogError, TierCorrupt
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import build_batch
from tests.spark.buckets import numbered, record
from tests.storage_tiers.cold.support import IDS, segment_of

DATA = numbered(100, 60, per_batch=7)
SEGMENT = replace(segment_of(IDS, 100, 160, 1, size=len(DATA)), records=60)
BOUNDS = [position for position, _ in headers(DATA)]


def piece_of(first: int = 0, end: int = len(DATA), *, base: int = 100, stop: int = 160, records: int = 60) -> ScanPiece:
    return ScanPiece(replace(SEGMENT, records=records), first, end, base, stop, base, stop)


def chunks(data: bytes, sizes: list[int]) -> Iterator[memoryview]:
    at = 0
    for size in sizes:
        yield memoryview(data)[at : at + size]
        at += size
    yield memoryview(data)[at:]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 400), max_size=30))
def test_any_chunks_give_the_same_batches(sizes: list[int]) -> None:
    found = list(runs(piece_of(), chunks(DATA, sizes)))
    assert b"".join(run.data for run in found) == DATA
    assert [batch.base_offset for run in found for batch in run.batches] == list(range(100, 160, 7))
    assert found[0].base == 100
    assert found[-1].end == 160
    for run in found:
        assert [batch.position for batch in run.batches] == [position for position, _ in headers(run.data)]


def test_a_batch_larger_than_many_chunks_is_read_whole() -> None:
    data = build_batch([record(0, value_bytes=100_000)], leader_epoch=1)
    segment = replace(segment_of(IDS, 0, 1, 1, size=len(data)), records=1)
    (run,) = runs(ScanPiece(segment, 0, len(data), 0, 1, 0, 1), chunks(data, [1000] * 99))
    assert run.data == data


def test_sparse_offsets_are_sound_where_the_segment_has_gaps() -> None:
    data = build_batch([record(3), record(8)], base_offset=1, offset_deltas=(2, 7), last_offset_delta=8)
    segment = replace(segment_of(IDS, 0, 20, 1, size=len(data)), records=2)
    (run,) = runs(ScanPiece(segment, 0, len(data), 0, 20, 0, 20), chunks(data, []))
    assert (run.base, run.end) == (1, 10)


def refusal(piece: ScanPiece, data: bytes) -> str:
    with pytest.raises(TierCorrupt) as refused:
        list(runs(piece, chunks(data, [])))
    return str(refused.value)


def test_missing_batches_are_named() -> None:
    without_first = DATA[BOUNDS[1] :]
    assert "offsets [100, 107) are missing" in refusal(piece_of(), without_first)
    without_third = DATA[: BOUNDS[2]] + DATA[BOUNDS[3] :]
    assert "offsets [114, 121) are missing" in refusal(piece_of(), without_third)
    without_last = DATA[: BOUNDS[-1]]
    assert "offsets [156, 160) are missing" in refusal(piece_of(), without_last)
    assert "it has 53 records, but the manifest says 54" in refusal(piece_of(records=54), without_third)


def test_foreign_batches_are_named() -> None:
    assert "its last 40 bytes are an incomplete batch" in refusal(piece_of(), DATA + DATA[:40])
    assert "a batch of offsets [100, 107) follows 160" in refusal(piece_of(records=59), DATA + DATA[: BOUNDS[1]])
    assert "a batch of offsets [156, 160) follows 156" in refusal(piece_of(stop=157), DATA)
    assert "no batch begins" in refusal(piece_of(), DATA + bytes(100))
    with pytest.raises(LogError):
        list(runs(piece_of(), chunks(bytes(100), [])))
