"""The sparse indexes in memory and on disk give the same answers, and the files are in Kafka's format."""

from __future__ import annotations

import bisect
from itertools import accumulate
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_tiers.errors import StorageError
from storage_tiers.hot import indexes
from storage_tiers.hot.indexes import (
    OffsetIndex,
    StoredOffsetIndex,
    StoredTimeIndex,
    TimeIndex,
    encode_transactions,
    read_transactions,
    read_transactions_since,
)
from storage_tiers.types import AbortedTransaction

BASE = 5_000_000_000


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


@given(st.sets(st.integers(0, 3000), max_size=40), st.lists(st.integers(-5, 3010), min_size=1, max_size=20))
def test_offsets_are_found_in_memory_and_on_disk_alike(scratch: Path, relative: set[int], asked: list[int]) -> None:
    index = OffsetIndex(BASE)
    entries = [(offset, 100 * number) for number, offset in enumerate(sorted(relative), 1)]
    for offset, position in entries:
        index.append(BASE + offset, position)
    path = scratch / "0.index"
    path.write_bytes(index.encode())
    stored = StoredOffsetIndex(str(path), BASE)
    assert stored.sound(100 * len(entries) + 1)
    assert OffsetIndex.load(str(path), BASE).entries == index.entries
    assert stored.last_position() == index.last_position()
    for offset in asked:
        at = bisect.bisect_right(entries, (offset, 1 << 40))
        expected = entries[at - 1][1] if at else 0
        assert index.lookup(BASE + offset) == stored.lookup(BASE + offset) == expected


@given(st.lists(st.integers(0, 500), max_size=40), st.lists(st.integers(-1, 510), min_size=1, max_size=20))
def test_times_are_found_in_memory_and_on_disk_alike(scratch: Path, timestamps: list[int], asked: list[int]) -> None:
    index = TimeIndex(BASE)
    kept: list[tuple[int, int]] = []
    for offset, timestamp in enumerate(timestamps, BASE):
        index.maybe_append(timestamp, offset)
        if not kept or timestamp > kept[-1][0]:
            kept.append((timestamp, offset))
    path = scratch / "0.timeindex"
    path.write_bytes(index.encode())
    stored, loaded = StoredTimeIndex(str(path), BASE), TimeIndex.load(str(path), BASE)
    assert stored.sound()
    assert (loaded.timestamps, loaded.offsets) == (index.timestamps, index.offsets)
    assert stored.last() == index.last() == (kept[-1] if kept else (-1, -1))
    for target in asked:
        expected = next((entry for entry in kept if entry[0] >= target), None)
        assert index.first_at_or_after(target) == stored.first_at_or_after(target) == expected


def test_the_bytes_are_kafkas(tmp_path: Path) -> None:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    offsets.append(BASE + 7, 4100)
    times.maybe_append(1_700_000_000_123, BASE + 6)
    assert offsets.encode().hex() == "00000007" + "00001004"
    assert times.encode().hex() == f"{1_700_000_000_123:016x}" + "00000006"
    aborted = AbortedTransaction(9, 3, 8, 9)
    assert encode_transactions([aborted]).hex() == "0000" + "".join(f"{number:016x}" for number in (9, 3, 8, 9))
    path = tmp_path / "0.txnindex"
    path.write_bytes(encode_transactions([aborted, aborted]))
    assert read_transactions(str(path)) == [aborted, aborted]


@given(st.lists(st.integers(1, 3), max_size=60), st.integers(0, 200))
def test_a_fetch_reads_the_aborted_transactions_that_end_behind_its_offset(
    scratch: Path, steps: list[int], offset: int
) -> None:
    ends = list(accumulate(steps))
    aborted = [AbortedTransaction(number, end - 1, end, end + 1) for number, end in enumerate(ends)]
    path = scratch / "0.txnindex"
    path.write_bytes(encode_transactions(aborted))
    with mock.patch.object(indexes, "ROWS_AT_ONCE", 7):
        found = list(read_transactions_since(str(path), offset))
    assert found == [each for each in aborted if each.last_offset >= offset]


def test_a_fetch_finds_no_aborted_transactions_in_a_damaged_or_missing_index(tmp_path: Path) -> None:
    path = tmp_path / "0.txnindex"
    assert list(read_transactions_since(str(path), 0)) == []
    path.write_bytes(b"x" * 35)
    with pytest.raises(StorageError, match="not a multiple"):
        list(read_transactions_since(str(path), 0))


def test_truncated_indexes_keep_the_entries_below_the_position(tmp_path: Path) -> None:
    offsets, times = OffsetIndex(0), TimeIndex(0)
    for number in range(1, 6):
        offsets.append(number * 10, number * 100)
        times.maybe_append(number * 1000, number * 10 - 1)
    offsets.truncate(300)
    times.truncate(29)
    assert [entry & 0xFFFFFFFF for entry in offsets.entries] == [100, 200]
    assert list(times.offsets) == [9, 19]
    offsets.truncate(0)
    assert len(offsets) == 0 and offsets.last_position() == 0


def test_foreign_files_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "0.index"
    index = OffsetIndex(0)
    index.append(5, 400)
    for content, sound in ((index.encode(), True), (index.encode() + b"x", False), (b"\xff" * 8, False), (b"", True)):
        path.write_bytes(content)
        assert StoredOffsetIndex(str(path), 0).sound(401) is sound
    path.write_bytes(index.encode())
    assert not StoredOffsetIndex(str(path), 0).sound(400)
    path.write_bytes(b"x" * 33)
    with pytest.raises(StorageError, match="not a multiple of 34"):
        read_transactions(str(path))
    path.write_bytes(b"\x00\x01" + bytes(32))
    with pytest.raises(StorageError, match="version 1"):
        read_transactions(str(path))
