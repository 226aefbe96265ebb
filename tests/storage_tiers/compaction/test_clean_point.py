"""Whether a noted clean point of the bucket holds for a later manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.model import CommitId, Manifest
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.compaction.clean_point import (
    BUCKET_FILE_NAME,
    begin_bucket_clean_point,
    bucket_clean_point,
    bucket_cleaned_to,
    read_bucket_clean_point,
    was_bucket_cleaned,
    write_bucket_clean_point,
)
from storage_tiers.files import OsFiles
from tests.storage_tiers.cold.support import IDS


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


def test_a_point_that_was_begun_says_that_records_may_be_missing_and_nothing_is_clean(tmp_path: Path) -> None:
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
