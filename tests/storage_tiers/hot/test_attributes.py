"""CPython lets objects of a class share their keys up to 30 attributes; beyond, every log would carry a dictionary of its
own, and appends would look them up in it."""

from __future__ import annotations

from pathlib import Path

from tests.storage_tiers.hot.support import open_log

MOST_SHARED = 30


def test_logs_share_the_names_of_their_attributes(tmp_path: Path) -> None:
    log = open_log(str(tmp_path))
    assert len(vars(log)) <= MOST_SHARED
    log.close(clean=True)
