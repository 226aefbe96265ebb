"""Two versions of a batch, and whether cleanings of one batch explain both."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.compaction.reduction import are_of_one_batch
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import assign, headers
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.records.decoder import decode_batch
from tests.storage_tiers.compaction.support import batch, clean, closed, write
from tests.storage_tiers.hot.support import marker, open_log, read_all


def stored(content: bytes, offset: int = 0, epoch: int = 1) -> bytes:
    copy = bytearray(content)
    assign(copy, base_offset=offset, leader_epoch=epoch)
    return bytes(copy)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("producer", [None, (7, 0, 0)])
def test_a_cleaned_log_is_a_reduction(tmp_path: str, codec: Codec, producer: tuple[int, int, int] | None) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=100_000))
    first = batch(("a", "1"), ("b", "1"), ("gone", None), codec=codec, producer=producer)
    write(log, first)
    closed(log)
    write(log, batch(("a", "2")))
    closed(log)
    clean(log, delete_retention_ms=10**12)
    left = read_all(log, upto=3)
    assert left != stored(first)
    assert are_of_one_batch(left, stored(first)) and are_of_one_batch(stored(first), left)


def test_an_emptied_batch_and_marker_are_reductions(tmp_path: str) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=100_000))
    first, second = batch(("a", "1"), producer=(7, 0, 0), transactional=True), marker(ControlKind.ABORT, 7)
    write(log, first, second)
    closed(log)
    clean(log)
    clean(log, now_ms=10**15)
    left = read_all(log)
    assert are_of_one_batch(left, stored(first)) or are_of_one_batch(left, stored(second, 1))


@pytest.mark.parametrize(
    "other",
    [
        stored(batch(("a", "2"), ("b", "1"))),
        stored(batch(("a", "1"), ("c", "1"))),
        stored(batch(("a", "1"), ("b", "1")), offset=1),
        stored(batch(("a", "1"), ("b", "1")), epoch=2),
        stored(batch(("a", "1"), ("b", "1"), producer=(7, 0, 0))),
        stored(batch(("a", "1"))),
        stored(build_batch([NewRecord(b"a", b"1", timestamp=5), NewRecord(b"b", b"1", timestamp=6)])),
    ],
)
def test_differences_that_no_cleaning_explains_are_found(other: bytes) -> None:
    full = stored(batch(("a", "1"), ("b", "1"), ("c", "1")))
    two = stored(batch(("a", "1"), ("b", "1")))
    assert are_of_one_batch(two, two)
    assert not are_of_one_batch(other, two) and not are_of_one_batch(two, other)
    assert not are_of_one_batch(two, full), "its last offset is another"


def test_markers_are_compared_by_what_they_decide() -> None:
    abort, commit = (stored(marker(kind, 7)) for kind in (ControlKind.ABORT, ControlKind.COMMIT))
    assert are_of_one_batch(abort, abort)
    assert not are_of_one_batch(abort, commit)


def left_of(directory: Path, first: bytes, later: str, *, keeps_tombstones: bool) -> bytes:
    """The first batch after cleanings of a log in which a later batch has the key `later`."""
    directory.mkdir()
    log = open_log(directory, settings=LogSettings(segment_bytes=100_000))
    write(log, first)
    closed(log)
    write(log, batch((later, "later")))
    closed(log)
    clean(log)
    if not keeps_tombstones:
        clean(log, now_ms=10**15)
    left = read_all(log)
    ((position, header),) = [each for each in headers(left) if each[1].last_offset == 1]
    return left[position : position + header.size]


def test_two_cleanings_may_leave_different_records_of_a_batch(tmp_path: Path) -> None:
    """The local log's cleaning has removed the tombstone; the bucket's has removed the other key, which a later record has."""
    full = batch(("a", None), ("b", "1"))
    tombstone = left_of(tmp_path / "bucket", full, "b", keeps_tombstones=True)
    value = left_of(tmp_path / "local", full, "c", keeps_tombstones=False)
    assert [each.offset for left in (tombstone, value) for each in decode_batch(left)] == [0, 1]
    assert are_of_one_batch(tombstone, value) and are_of_one_batch(value, tombstone)
    other = left_of(tmp_path / "other", batch(("a", None), ("b", "2")), "c", keeps_tombstones=False)
    assert not are_of_one_batch(other, value)
    assert not are_of_one_batch(stored(full), other)
