"""Splits cover the offsets to read exactly once, for any segments, index and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tidelog.options import EARLIEST, LATEST, Bound, OptionError
from pyspark_tidelog.plan import Split
from pyspark_tidelog.split_planner import range_to_read, splits_of
from storage_tiers.cold.manifest.model import Manifest, ManifestPage, PageRef, RemoteSegment
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.segments.sidecar import IndexRow, Sidecar
from tests.storage_tiers.cold.support import IDS, segment_of


def no_page(ref: PageRef) -> ManifestPage:
    raise AssertionError(f"page {ref.key} was not needed")


def no_index(segment: RemoteSegment) -> Sidecar:
    raise AssertionError(f"the index of {segment.key} was not needed")


def manifest_of(segments: Sequence[RemoteSegment], log_start: int = 0) -> Manifest:
    end = segments[-1].end if segments else log_start
    return replace(first_manifest(IDS), commit=7, segments=tuple(segments), log_start=log_start, end=end)


def sidecar_of(segment: RemoteSegment, rows: Sequence[tuple[int, int]]) -> Sidecar:
    index = tuple(IndexRow(offset, position, 0) for offset, position in rows)
    return Sidecar(segment.base, segment.end, segment.length, segment.crc32c, index=index)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[RemoteSegment], dict[str, Sidecar]]:
    """Contiguous segments, each with an index whose first row is its first batch."""
    segments: list[RemoteSegment] = []
    sidecars: dict[str, Sidecar] = {}
    base = draw(st.integers(0, 50))
    for number in range(draw(st.integers(1, 6))):
        lengths = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 200)), min_size=1, max_size=8))
        lead = draw(st.integers(0, 5))  # compaction may have removed the first offsets
        rows, offset, position = [], base + lead, 0
        for count, size in lengths:
            rows.append((offset, position))
            offset, position = offset + count, position + size
        segment = segment_of(IDS, base, offset, number + 1, size=position)
        segments.append(segment)
        sidecars[segment.key] = sidecar_of(segment, rows)
        base = offset
    return segments, sidecars


def check_cover(splits: Sequence[Split], start: int, end: int) -> None:
    at = start
    last: tuple[str, int] = ("", 0)
    for piece in (piece for split in splits for piece in split.pieces):
        assert piece.start == at
        assert piece.base <= piece.start < piece.stop <= piece.end
        assert piece.segment.base <= piece.base
        assert piece.end <= piece.segment.end
        assert 0 <= piece.first_byte < piece.end_byte <= piece.segment.length
        if piece.segment.key == last[0]:
            assert piece.first_byte == last[1]  # no byte of a segment is read twice or skipped
        last = piece.segment.key, piece.end_byte
        at = piece.stop
    assert at == end


@settings(deadline=None)
@given(log=logs(), data=st.data())
def test_splits_cover_the_range_exactly_once(
    log: tuple[list[RemoteSegment], dict[str, Sidecar]], data: st.DataObject
) -> None:
    segments, sidecars = log
    low, high = segments[0].base, segments[-1].end
    log_start = data.draw(st.integers(low, high))
    start = data.draw(st.integers(log_start, high))
    end = data.draw(st.integers(start, high))
    max_bytes = data.draw(st.integers(1, 500))
    manifest = manifest_of(segments, log_start)
    splits = splits_of(manifest, no_page, lambda segment: sidecars[segment.key], start, end, max_bytes)
    check_cover(splits, start, end)
    for split in splits:
        assert split.commit == 7
        assert len(split.pieces) == 1 or split.bytes <= max_bytes
    rows = {(key, row.position): row.base_offset for key, sidecar in sidecars.items() for row in sidecar.index}
    for piece in (piece for split in splits for piece in split.pieces):
        assert (piece.segment.key, piece.first_byte) in rows
        assert piece.end_byte == piece.segment.length or (piece.segment.key, piece.end_byte) in rows
        if piece.first_byte:
            assert piece.base == rows[piece.segment.key, piece.first_byte]


def test_small_segments_share_a_split_and_need_no_index() -> None:
    segments = [segment_of(IDS, base, base + 10, base + 1, size=100) for base in range(0, 100, 10)]
    splits = splits_of(manifest_of(segments), no_page, no_index, 0, 100, 300)
    assert [len(split.pieces) for split in splits] == [3, 3, 3, 1]
    assert all(piece.whole for split in splits for piece in split.pieces)


def test_a_large_segment_is_cut_into_about_equal_parts() -> None:
    segment = segment_of(IDS, 0, 1000, 1, size=100_000)
    sidecar = sidecar_of(segment, [(offset, offset * 100) for offset in range(0, 1000, 10)])
    splits = splits_of(manifest_of([segment]), no_page, lambda _: sidecar, 0, 1000, 30_000)
    assert [split.bytes for split in splits] == [25_000] * 4
    check_cover(splits, 0, 1000)


def test_offsets_inside_a_segment_read_only_their_intervals() -> None:
    segment = segment_of(IDS, 0, 1000, 1, size=100_000)
    sidecar = sidecar_of(segment, [(offset, offset * 100) for offset in range(0, 1000, 10)])
    (split,) = splits_of(manifest_of([segment]), no_page, lambda _: sidecar, 123, 127, 1 << 20)
    (piece,) = split.pieces
    assert (piece.first_byte, piece.end_byte, piece.base, piece.end) == (12_000, 13_000, 120, 130)
    assert (piece.start, piece.stop) == (123, 127)


def test_a_range_below_a_segments_first_batch_reads_the_first_interval() -> None:
    segment = segment_of(IDS, 0, 1000, 1, size=100_000)
    sidecar = sidecar_of(segment, [(offset, (offset - 50) * 100) for offset in range(50, 1000, 10)])
    splits = splits_of(manifest_of([segment]), no_page, lambda _: sidecar, 10, 20, 1 << 20)
    check_cover(splits, 10, 20)
    assert [split.bytes for split in splits] == [1000]


def test_an_empty_plan_has_no_splits() -> None:
    segment = segment_of(IDS, 0, 1000, 1)
    assert splits_of(manifest_of([segment]), no_page, no_index, 500, 500, 1) == ()
    assert splits_of(first_manifest(IDS), no_page, no_index, 0, 0, 1) == ()


# --- ranges ------------------------------------------------------------------------------------------------------------
MANIFEST = manifest_of([segment_of(IDS, 0, 100, 1)], log_start=10)


def at(offset: int) -> Bound:
    return Bound(offsets={IDS.topic: {IDS.partition: offset}})


def no_time(timestamp: int) -> int | None:
    raise AssertionError("no time was asked for")


def ranged(starting: Bound, ending: Bound) -> tuple[int, int]:
    return range_to_read(MANIFEST, starting, ending, {1: 20, 2: 50}.get)


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        (Bound(), Bound(), (10, 100)),
        (at(EARLIEST), at(LATEST), (10, 100)),
        (at(10), at(100), (10, 100)),
        (at(23), at(42), (23, 42)),
        (at(100), Bound(), (100, 100)),
        (Bound(), at(5), (10, 10)),
        (Bound(timestamp=1), Bound(timestamp=2), (20, 50)),
        (Bound(timestamp=2), Bound(timestamp=1), (50, 50)),
        (Bound(timestamp=3), Bound(timestamp=3), (100, 100)),
        (at(30), Bound(timestamp=1), (30, 30)),
    ],
)
def test_a_plan_has_the_range_between_its_bounds(starting: Bound, ending: Bound, expected: tuple[int, int]) -> None:
    assert ranged(starting, ending) == expected


@pytest.mark.parametrize(
    ("starting", "ending", "said"),
    [
        (at(9), Bound(), "flights-3 begins at offset 10 and no longer has offset 9"),
        (at(101), Bound(), "startingOffsets names offset 101 of flights-3, which ends at 100"),
        (Bound(), at(101), "endingOffsets names offset 101 of flights-3, which ends at 100"),
        (at(50), at(49), "startingOffsets names offset 50 of flights-3, but endingOffsets names 49"),
    ],
)
def test_offsets_that_the_bucket_does_not_have_are_refused(starting: Bound, ending: Bound, said: str) -> None:
    with pytest.raises(OptionError, match="flights-3") as refused:
        ranged(starting, ending)
    assert said in str(refused.value)
