"""Saved clean points: they hold for a later manifest of the bucket, or for local segments found later, or are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from storage_tiers.cold.manifest.model import CommitId, Manifest
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.compaction.clean_point import (
    BUCKET_FILE_NAME,
    begin_bucket_clean_point,
    bucket_clean_point,
    bucket_cleaned_to,
    clean_point,
    cleaned_to,
    read_bucket_clean_point,
    read_clean_point,
    was_bucket_cleaned,
    write_bucket_clean_point,
    write_clean_point,
)
from storage_tiers.files import OsFiles
from tests.storage_tiers.cold.support import IDS
from tests.storage_tiers.hot.support import append, batch_of, filled


def at(commit: int, *, line: str = "one", history: str = "a") -> Manifest:
    recent = tuple(CommitId(number, f"{history}{number}") for number in range(max(1, commit - 31), commit + 1))
    return replace(first_manifest(IDS), line=line, commit=commit, recent=recent)


@pytest.mark.parametrize(
    ("manifest", "reached"),
    [
        (at(10), 70),
        (at(11), 70),
        (at(500), 70),
        (at(9), 0),
        (at(10, history="b"), 0),
        (at(30, history="b"), 0),
        (at(11, line="two"), 0),
    ],
    ids=["itself", "later", "much later", "earlier", "another of its number", "after another", "repaired"],
)
def test_a_clean_point_holds_for_what_follows_from_its_commit(tmp_path: Path, manifest: Manifest, reached: int) -> None:
    write_bucket_clean_point(OsFiles(), str(tmp_path), bucket_clean_point(at(10), 70))
    assert bucket_cleaned_to(read_bucket_clean_point(str(tmp_path)), manifest) == reached


def test_a_begun_clean_point_says_that_records_may_be_missing_and_keeps_the_last_point(tmp_path: Path) -> None:
    assert not was_bucket_cleaned(str(tmp_path))
    begin_bucket_clean_point(OsFiles(), str(tmp_path))
    assert was_bucket_cleaned(str(tmp_path))
    assert bucket_cleaned_to(read_bucket_clean_point(str(tmp_path)), at(1)) == 0
    write_bucket_clean_point(OsFiles(), str(tmp_path), bucket_clean_point(at(10), 70))
    begin_bucket_clean_point(OsFiles(), str(tmp_path))
    assert bucket_cleaned_to(read_bucket_clean_point(str(tmp_path)), at(10)) == 70


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 0, "offset": 7, "segments": [[0, 10]]}', '{"version": 1}']
)
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / BUCKET_FILE_NAME).write_text(content)
    assert read_bucket_clean_point(str(tmp_path)) is None


class Segment(NamedTuple):
    base: int
    end: int
    size_bytes: int
    max_timestamp: int = 0
    first_append_ms: int = 0
    active: bool = False


FIRST, SECOND, THIRD = Segment(0, 10, 100), Segment(10, 20, 200), Segment(20, 30, 300)


@pytest.mark.parametrize(
    ("segments", "reached"),
    [
        ([FIRST, SECOND, THIRD], 20),
        ([SECOND, THIRD], 20),
        ([FIRST, SECOND, Segment(20, 25, 250)], 20),
        ([Segment(0, 10, 101), SECOND, THIRD], 0),
        ([FIRST, Segment(10, 20, 201), THIRD], 0),
        ([FIRST, THIRD], 0),
        ([FIRST, Segment(10, 14, 80), Segment(14, 20, 120)], 0),
        ([THIRD], 0),
        ([], 0),
    ],
    ids=["same", "oldest evicted", "newer differ", "first", "last", "cut", "divided", "all evicted", "none"],
)
def test_a_local_clean_point_holds_for_the_segments_that_it_was_found_with(
    segments: list[Segment], reached: int
) -> None:
    assert cleaned_to(clean_point([FIRST, SECOND, THIRD], 20, epoch_1), segments, epoch_1) == reached


def epoch_1(offset: int) -> int:
    return 1


def test_a_log_with_other_records_in_segments_of_the_same_sizes_is_not_clean(tmp_path: Path) -> None:
    """A log that replaced its end with the bucket's may have segments of the same sizes, because its records have one size."""
    log, _ = filled(tmp_path, 80)
    log.flush()
    write_clean_point(
        log.files, log.directory, clean_point(log.durable_segments(), log.active_start_offset, log.epoch_at)
    )
    known = read_clean_point(log.directory)
    assert known is not None and known.offset > 0
    assert cleaned_to(known, log.durable_segments(), log.epoch_at) == known.offset
    log.truncate_fully_and_start_at(0)
    for number in range(80):
        append(log, batch_of(2, value=b"%d" % number), epoch=2)
    log.flush()
    assert clean_point(log.durable_segments(), known.offset, log.epoch_at).segments == known.segments
    assert cleaned_to(known, log.durable_segments(), log.epoch_at) == 0


def test_a_clean_point_names_the_epoch_of_its_last_clean_record() -> None:
    """The records above the clean point may have the next epoch."""

    def epoch_at(offset: int) -> int:
        return 1 if offset < 7 else 2

    point = clean_point([Segment(0, 7, 10), Segment(7, 9, 10)], 7, epoch_at)
    assert (point.segments, point.epoch) == (((0, 10),), 1)
    assert cleaned_to(point, [Segment(0, 7, 10), Segment(7, 9, 10)], epoch_at) == 7
