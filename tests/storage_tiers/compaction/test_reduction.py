"""Two versions of a batch: which of them a cleaning explains."""

from __future__ import annotations

import pytest

from storage_tiers.compaction.reduction import is_reduction
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import assign
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch
from storage_tiers.records.codecs import Codec
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
    assert is_reduction(left, stored(first))
    assert not is_reduction(stored(first), left)


def test_an_emptied_batch_and_marker_are_reductions(tmp_path: str) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=100_000))
    first, second = batch(("a", "1"), producer=(7, 0, 0), transactional=True), marker(ControlKind.ABORT, 7)
    write(log, first, second)
    closed(log)
    clean(log)
    clean(log, now_ms=10**15)
    left = read_all(log)
    assert is_reduction(left, stored(first)) or is_reduction(left, stored(second, 1))


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
def test_differences_that_no_cleaning_explains(other: bytes) -> None:
    full = stored(batch(("a", "1"), ("b", "1"), ("c", "1")))
    two = stored(batch(("a", "1"), ("b", "1")))
    assert is_reduction(two, two)
    assert not is_reduction(other, two)
    assert not is_reduction(two, full), "its last offset is another"


def test_markers_are_compared_by_what_they_decide() -> None:
    abort, commit = (stored(marker(kind, 7)) for kind in (ControlKind.ABORT, ControlKind.COMMIT))
    assert is_reduction(abort, abort)
    assert not is_reduction(abort, commit)
