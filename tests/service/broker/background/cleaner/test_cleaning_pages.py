"""Planning the compaction of a bucket whose manifest has pages: the plan equals that of all segments one by one, and few pages
are read for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from service.broker.background.cleaner.cold_cleaning import MAX_OPENED, ColdCleaning, _view
from storage_tiers.cold.manifest.model import PageRef, RemoteSegment
from storage_tiers.errors import StorageError
from storage_tiers.policy.compaction import CleaningLimits, plan_cleaning
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, EAGER, cleaning, led, put, store
from tests.service.broker.background.cleaner.test_cleaning_bucket import bucket_cleaned_to
from tests.service.broker.support import Running, manifest_of, running, until
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import START_MS

#: Bounds of a manifest that keeps few segments itself and has small pages.
SMALL: dict[str, Any] = {"MAX_SEGMENTS": 6, "MAX_PAGE_SEGMENTS": 4, "_EXPIRED_INLINE": 1}
SEGMENTS = 24


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that are read, in order."""
    found: list[str] = []
    of_page = ColdCleaning._of_page

    async def noted(self: ColdCleaning, partition: Any, page: PageRef) -> AsyncIterator[RemoteSegment]:
        found.append(page.key)
        async for each in of_page(self, partition, page):
            yield each

    monkeypatch.setattr(ColdCleaning, "_of_page", noted)
    return found


async def filled(node: Running, segments: int, first: int = 0, *, early: int | None = None) -> None:
    """Seals `segments` segments with timestamps a second apart; segment `early` is a second newer than all others."""
    for number in range(first, first + segments):
        records = (("a", f"{number}"), (f"k{number}", "x" * (number % 5 * 20)))
        timestamp = START_MS + 1000 * (first + segments if number == early else number)
        await node.append_batch("t", batch(*records, timestamps=[timestamp] * 2))
        await node.seal("t")


@pytest.mark.parametrize("early", [None, 5])
async def test_a_plan_is_that_of_all_segments(tmp_path: Path, opened: list[str], early: int | None) -> None:
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **SMALL):
        async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
            await node.create("t", configs=COMPACTED)
            await filled(node, SEGMENTS, early=early)
            cold, hot = cleaning(node)._cold, led(node).log.hot
            assert cold is not None
            assert len((await manifest_of(led(node))).live_pages) >= 4
            end_ms = START_MS + 1000 * SEGMENTS
            await cold.plan(led(node), end_ms, CleaningLimits(0, 1 << 62, 0.5))
            all_of_them = await cold._segments(led(node), 1 << 62)
            views = [_view(each, active=each is all_of_them[-1]) for each in all_of_them]
            for clean in range(0, 2 * SEGMENTS, 2):
                for limits in (CleaningLimits(0, 1, 0.5), CleaningLimits(9000, 20_000, 0.5)):
                    cold._known[hot] = cold._known[hot]._replace(cleaned_to=clean)
                    expected = plan_cleaning(
                        views,
                        cleaned_to=clean,
                        bound=2 * SEGMENTS,
                        now_ms=end_ms,
                        limits=limits,
                        first_timestamp=lambda view: view.first_timestamp,
                    )
                    opened.clear()
                    assert await cold.plan(led(node), end_ms, limits) == expected
                    assert len(set(opened)) <= MAX_OPENED


async def test_pages_are_not_read_again_after_every_commit(tmp_path: Path, opened: list[str]) -> None:
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **SMALL):
        async with running(tmp_path / "data", store(), broker=EAGER) as node:
            await node.create("t", configs={**COMPACTED, "min.cleanable.dirty.ratio": "1"})
            await filled(node, SEGMENTS)
            looked = cleaning(node).figures.looked_ms
            await until(lambda: cleaning(node).figures.looked_ms > looked)
            opened.clear()
            await filled(node, SEGMENTS, SEGMENTS)
            assert opened == [], "all is dirty: the pages' own sums tell"


async def test_a_clean_bucket_stays_clean_after_a_restart_and_after_commits_of_others(tmp_path: Path) -> None:
    bucket = store()
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        await node.create("t", configs=COMPACTED)
        for number in range(4):
            await put(node, ("a", f"{number}"))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) == 3)
    async with running(tmp_path / "data", bucket, broker={"log.cleaner.enable": "false"}) as node:
        for number in range(2):
            await put(node, ("a", f"more {number}"))
            await node.seal("t")
        cold = cleaning(node)._cold
        assert cold is not None
        plan = await cold.plan(led(node), START_MS, CleaningLimits(0, 1 << 62, 0.5))
        assert plan is not None
        assert (plan.dirty_start, plan.end) == (3, 5)
        assert cold.cleaned_to(led(node)) == 3
        tier = led(node).log.tier
        assert tier is not None
        led(node).log.tier = replace(tier, line="of another writer")  # its segments may have values that ours lack
        assert cold.cleaned_to(led(node)) == 0
        led(node).log.tier = tier
        hot = led(node).log.hot
        hot.reconfigure(replace(hot.settings, remote_copy_disable=True))
        assert await cold.plan(led(node), START_MS, CleaningLimits(0, 1 << 62, 0.5)) is None, "a cleaning uploads, too"


async def test_after_a_death_behind_a_replacement_cleaning_resumes_at_the_last_clean_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest has new segments, and their clean point was not saved."""

    async def refused(*_: object) -> None:
        raise StorageError("the disk refuses")

    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=COMPACTED)
        for number in range(4):
            await put(node, ("a", f"{number}"))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) == 3)
        before = (await manifest_of(led(node))).segments[0]
        monkeypatch.setattr(ColdCleaning, "save_clean_point", refused)
        await put(node, ("a", "4"))
        await node.seal("t")
        await until(lambda: bool(cleaning(node)._retries))
        assert (await manifest_of(led(node))).segments[0].key != before.key
        cold = cleaning(node)._cold
        assert cold is not None
        plan = await cold.plan(led(node), START_MS, CleaningLimits(0, 1 << 62, 0.5))
        assert plan is not None
        assert (plan.dirty_start, plan.end) == (3, 4)
