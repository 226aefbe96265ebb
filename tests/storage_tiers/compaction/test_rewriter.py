"""The rewriter's groups: their offsets, ends and transaction indexes, and the markers that it keeps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_tiers.compaction.batches import CleaningRules
from storage_tiers.compaction.cleaning_inputs import cleaning_of
from storage_tiers.compaction.rewriter import CleaningJob, Rewriter, SourceSegment, offset_map
from storage_tiers.errors import CorruptRecord, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import read_transactions
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.scan import SCAN_BYTES
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.records.batch import Buffer
from storage_tiers.records.builder import ControlKind
from tests.storage_tiers.compaction.support import KEY, LATER_MS, batch, batch_headers, clean, closed, write
from tests.storage_tiers.hot.support import marker, open_log, placed

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=100)


def segment(directory: Path, base: int, end: int, *batches: bytes) -> SourceSegment:
    """A closed segment of offsets [base, end) with these batches."""
    content = b"".join(batches)
    (directory / layout.file_name(base, layout.LOG)).write_bytes(content)
    return SourceSegment(base, end, len(content))


def rewritten(
    directory: Path, segments: Sequence[SourceSegment], files: OsFiles | None = None
) -> list[RewrittenSegment | None]:
    job = CleaningJob(
        directory=str(directory),
        segments=segments,
        dirty_start=segments[0].base,
        fences=(),
        aborted=(),
        segment_bytes=1 << 20,
        index_interval=4096,
    )
    rewriter = Rewriter(files or OsFiles(), job, offset_map(100, 1 << 20, 0.5, KEY))
    rules = CleaningRules(LATER_MS, 0, rewriter.read_keys() - 1, 1 << 62, {})
    return list(rewriter.rewrite(rules))


@pytest.mark.parametrize(("end", "segments"), [((1 << 31) - 1, 1), (1 << 31, 2)])
def test_no_group_has_more_offsets_than_an_index_can_hold(tmp_path: Path, end: int, segments: int) -> None:
    sources = [
        segment(tmp_path, 0, 2, placed(batch(("a", "1")), 0, 1), placed(batch(("a", "2")), 1, 1)),
        segment(tmp_path, 2, end, placed(batch(("a", "3")), 2, 1), placed(batch(("b", "1")), end - 1, 1)),
    ]
    assert len(rewritten(tmp_path, sources)) == segments


def test_a_segment_that_lacks_its_last_batches_is_not_replaced(tmp_path: Path) -> None:
    sources = [segment(tmp_path, 0, 3, placed(batch(("a", "1")), 0, 1), placed(batch(("a", "2")), 1, 1))]
    with pytest.raises(CorruptRecord, match="ends at offset 2, not at 3"):
        rewritten(tmp_path, sources)
    assert [each.name for each in tmp_path.iterdir()] == [layout.file_name(0, layout.LOG)]


def test_each_rewritten_segment_lists_the_aborted_transactions_that_end_in_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    for number in range(2):
        write(log, batch(("a", "x"), producer=(7, 0, number), transactional=True), marker(ControlKind.ABORT, 7))
        write(log, batch(("z", f"{number}")), batch(("y", f"{number}")))
        closed(log)
    clean(log, fences=(4,), drops_below=0)
    assert log.segment_count == 3
    listed = [
        [each.first_offset for each in read_transactions(f"{log.directory}/{layout.file_name(base, suffix)}")]
        for base, suffix in ((0, layout.TRANSACTION_INDEX), (4, layout.TRANSACTION_INDEX))
    ]
    assert listed == [[0], [4]]


def transaction(log: HotLog, sequence: int, key: str) -> None:
    write(log, batch((key, "1"), producer=(7, 0, sequence), transactional=True), marker(ControlKind.COMMIT, 7))


def test_a_marker_is_removed_though_an_earlier_transaction_of_its_producer_has_data(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    transaction(log, 0, "kept")
    transaction(log, 1, "gone")
    write(log, batch(("gone", "2")), batch(("b", "1"), producer=(7, 0, 2)), batch(("z", "1")))
    closed(log)
    for _ in range(3):
        clean(log, now_ms=LATER_MS)
    assert [base for base, _, _ in batch_headers(log)] == [0, 1, 4, 5, 6]


def test_a_batch_of_an_earlier_offset_in_a_later_chunk_is_damage(tmp_path: Path) -> None:
    large, last = placed(batch(("a", "x" * SCAN_BYTES)), 5, 1), placed(batch(("c", "1")), 7, 1)
    sound = segment(tmp_path, 4, 8, large, placed(batch(("b", "1")), 6, 1), last)
    assert rewritten(tmp_path, [sound])
    damaged = segment(tmp_path, 4, 8, large, placed(batch(("b", "1")), 4, 1), last)
    with pytest.raises(CorruptRecord, match="no sound record batch"):
        rewritten(tmp_path, [damaged])


def test_a_batch_below_the_start_of_its_segment_is_damage(tmp_path: Path) -> None:
    damaged = segment(tmp_path, 4, 6, placed(batch(("a", "1")), 3, 1), placed(batch(("a", "2")), 5, 1))
    with pytest.raises(CorruptRecord, match="no sound record batch"):
        rewritten(tmp_path, [damaged])


def test_a_transaction_that_was_aborted_before_the_dirty_part_hides_no_later_one(tmp_path: Path) -> None:
    """Its marker is not read."""
    log = open_log(tmp_path, settings=SETTINGS)
    for number, end in enumerate((ControlKind.ABORT, ControlKind.COMMIT)):
        write(log, batch(("a", f"{number}"), producer=(7, 0, number), transactional=True), marker(end, 7))
        closed(log)
    made = cleaning_of(log, dirty_start=2, end=4, fences=())
    assert made is not None
    job = made()
    assert [each.last_offset for each in job.aborted] == [1]
    keys = offset_map(100, 1 << 20, 0.5, KEY)
    assert (Rewriter(OsFiles(), job, keys).read_keys(), keys.count) == (4, 1)


def test_every_file_is_durable_before_it_is_reported(tmp_path: Path) -> None:
    class Watched(OsFiles):
        """`unsynced` are the files that were written and not synced since."""

        def __init__(self) -> None:
            self.names: dict[int, str] = {}
            self.unsynced: set[str] = set()

        def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
            fd = super().open(path, create=create, exclusive=exclusive, truncate=truncate)
            self.names[fd] = path
            return fd

        def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
            self.unsynced.add(self.names[fd])
            return super().pwrite(fd, buffers, position)

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.unsynced.discard(self.names[fd])

    files = Watched()
    sources = [segment(tmp_path, 0, 2, placed(batch(("a", "1")), 0, 1), placed(batch(("a", "2")), 1, 1))]
    (new,) = rewritten(tmp_path, sources, files)
    assert new is not None
    assert {os.path.splitext(each)[1] for each in files.names.values()} == {layout.CLEANED}
    assert not files.unsynced


def test_a_map_without_room_for_the_first_dirty_batch_is_too_small_even_after_a_gap(tmp_path: Path) -> None:
    wide = placed(batch(*((f"{each}", "1") for each in range(50))), 5, 1)
    job = CleaningJob(
        directory=str(tmp_path),
        segments=[segment(tmp_path, 0, 55, placed(batch(("a", "1")), 0, 1), wide)],
        dirty_start=5,
        fences=(),
        aborted=(),
        segment_bytes=1 << 20,
        index_interval=4096,
    )
    with pytest.raises(StorageError, match="the batch at offset 5 has more keys than the cleaner's map"):
        Rewriter(OsFiles(), job, offset_map(1, 0, 0.5, KEY)).read_keys()
