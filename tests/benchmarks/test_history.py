"""What a commit writes at most, and on average, whatever the history."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.commit_model import DEEP, REAL, run

COMMITS = 100_000


@pytest.mark.parametrize(
    ("bounds", "live", "grace", "levels"),
    [(REAL, 60_000, 2_000, False), (DEEP, 50_000, 5_000, True), (DEEP, 1_000, 300, True), (DEEP, 30, 10, False)],
    ids=["real pages", "two levels of pages", "two levels, much removed", "little kept"],
)
def test_a_commit_is_2_puts_amortised_and_never_more_than_4(
    bounds: Mapping[str, int], live: int, grace: int, levels: bool
) -> None:
    puts = run(COMMITS, bounds=bounds, live=live, grace=grace)
    assert puts.commits >= COMMITS
    assert puts.levels == levels
    assert puts.amortised <= 2
    assert puts.most <= 4
