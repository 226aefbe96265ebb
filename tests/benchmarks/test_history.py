"""PUTs of a commit, at most and amortised, for any length of history; store requests of an idle cluster and a cold read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import history_node
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


async def test_an_idle_partition_makes_no_requests_and_a_listing_has_a_thousand_objects_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_node, "IDLE_PARTITIONS", 5)
    monkeypatch.setattr(history_node, "OBJECTS", 4_000)
    found = {(row, unit): value for row, unit, value in await history_node.requests(tmp_path / "data")}
    assert found["an idle partition", "requests an hour"] == 0
    assert 0 < found["sweep of a cluster", "LISTs a 1,000 objects"] <= 5 / 4
    assert found["cold read of one record, broker", "GETs"] == 2
