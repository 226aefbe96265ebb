"""Readers that read a value of a key in one tier, and its tombstone later in the other: they always meet the tombstone if they
need no longer than `delete.retention.ms`. The tier process reads a local segment undisturbed, too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.broker.background.cleaner.cleaning import _ALL, Cleaning
from service.broker.background.extensions import Extensions
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.partition import Partition
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.hot.log import HotLog
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import ControlKind
from tests.service.broker.background.cleaner.cleaning_support import by_hand, clean_bucket, clean_local, evict, set_time
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, closed, led, put, store
from tests.service.broker.background.cleaner.test_cleaning_bucket import bucket_cleaned_to
from tests.service.broker.support import Running, manifest_of, until
from tests.storage_tiers.hot.support import START_MS, marker

RETENTION_MS = 60_000
#: The local log keeps all until a test evicts.
KEPT = {**COMPACTED, "retention.ms": "-1", "local.retention.ms": "-1", "delete.retention.ms": str(RETENTION_MS)}


async def sealed(node: Running, *pairs: tuple[str, str | None]) -> None:
    await put(node, *pairs)
    await node.seal("t")


async def tombstones(node: Running, start: int = 0) -> list[int]:
    return [each.offset for each in await node.read_all("t", start=start) if each.value is None]


async def test_the_bucket_keeps_tombstones_while_the_local_log_shows_the_value(tmp_path: Path) -> None:
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs={**KEPT, "delete.retention.ms": "0"})
        await sealed(node, ("a", "1"))
        await sealed(node, ("a", None))
        for number in range(3):
            await sealed(node, ("b", f"{number}"))
            set_time(node, START_MS + number)
            assert await clean_bucket(node)
        (first, *_) = await node.read_all("t")
        assert (first.key, first.value) == (b"a", b"1"), "the local log was not cleaned"
        await evict(node)
        assert await tombstones(node, start=first.offset + 1) == [1]


async def test_a_scan_that_took_the_value_from_the_local_log_meets_the_tombstone_in_the_bucket(tmp_path: Path) -> None:
    """The bucket's retention of the tombstone begins once the local log no longer shows the value. Here an eviction removes the
    value, after the bucket was cleaned."""
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs=KEPT)
        await sealed(node, ("a", "1"))
        await sealed(node, ("a", None))
        await sealed(node, ("b", "0"))
        set_time(node, START_MS)
        assert await clean_bucket(node)
        (first, *_) = await node.read_all("t")
        assert first.value == b"1"
        await evict(node)
        now_ms = START_MS + 10 * RETENTION_MS
        for number, later_ms, left in ((1, 0, [1]), (2, RETENTION_MS - 1, [1]), (3, RETENTION_MS, [])):
            await sealed(node, ("b", f"{number}"))
            set_time(node, now_ms + later_ms)
            assert await clean_bucket(node)
            await evict(node)
            assert await tombstones(node) == left, later_ms


async def test_a_record_supersedes_nothing_before_the_bucket_holds_it(tmp_path: Path) -> None:
    """Otherwise the bucket could lack both values of the key if the disk was lost between two offloads."""
    bucket = store()
    async with by_hand(tmp_path / "data", bucket) as node:
        await node.create("t", configs=KEPT)
        await sealed(node, ("a", "1"), ("b", "1"))
        bucket.down = True
        for value in ("2", "3"):
            await put(node, ("a", value))
            await closed(node)
        await until(lambda: len(led(node).log.hot.durable_segments()) >= 3)
        assert await clean_local(node)
        assert [each.value for each in await node.read_all("t")] == [b"1", b"1", b"2", b"3"]
        bucket.down = False
        await node.seal("t")
        assert await clean_local(node)
        assert [each.value for each in await node.read_all("t")] == [b"1", b"3"]


async def test_a_local_tombstones_retention_begins_once_the_bucket_is_clean_below_it(tmp_path: Path) -> None:
    """Otherwise the first pass over the bucket would remove a value, and the next local pass would remove its tombstone at
    once."""
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs=KEPT)
        await sealed(node, ("a", "1"))
        await evict(node)
        hot = led(node).log.hot
        await sealed(node, ("a", None))
        await sealed(node, ("b", "0"))
        set_time(node, START_MS)
        assert await clean_local(node)
        assert horizons(hot) == [], "the bucket still shows the value"
        set_time(node, START_MS + 10 * RETENTION_MS)
        assert await clean_bucket(node)
        assert bucket_cleaned_to(node) == 2
        for number, later_ms, left in ((1, 0, [1]), (2, RETENTION_MS - 1, [1]), (3, RETENTION_MS, [])):
            await sealed(node, ("b", f"{number}"))
            set_time(node, START_MS + 20 * RETENTION_MS + later_ms)
            assert await clean_local(node)
            assert await tombstones(node, start=hot.local_start_offset) == left, later_ms


async def test_a_tombstone_is_offloaded_without_the_retention_that_only_one_tier_gave_it(tmp_path: Path) -> None:
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs=KEPT)
        await sealed(node, ("a", "1"))
        hot = led(node).log.hot
        settings = hot.settings
        hot.reconfigure(replace(settings, remote_copy_disable=True))
        await put(node, ("a", None))
        await closed(node)
        set_time(node, START_MS)
        assert await clean_local(node)
        hot.reconfigure(settings)
        await sealed(node, ("b", "0"))
        await sealed(node, ("b", "1"))
        set_time(node, START_MS + 10 * RETENTION_MS)
        assert await clean_bucket(node)
        await evict(node)
        assert await tombstones(node) == [1], "this pass has removed the value"


async def test_a_markers_retention_begins_once_the_bucket_is_clean_below_it(tmp_path: Path) -> None:
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs=KEPT)
        await sealed(node, ("a", "1"))
        hot = led(node).log.hot
        hot.reconfigure(replace(hot.settings, remote_copy_disable=True))
        end = marker(ControlKind.COMMIT, 7)
        led(node).append_validated(memoryview(end), read_header(end), origin=AppendOrigin.COORDINATOR)
        await put(node, ("b", "0"))
        await closed(node)
        set_time(node, START_MS)
        assert await clean_local(node)
        assert horizons(hot) == []


def horizons(hot: HotLog) -> list[int]:
    """The delete horizons of the local batches, in ms since 1970."""
    found = []
    for segment in hot.segments():
        with open(segment.path, "rb") as file:
            found += [each.base_timestamp for _, each in headers(file.read()) if each.delete_horizon]
    return found


async def test_the_buckets_tombstones_are_compared_with_the_local_log_again_at_each_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was truncated no longer counts as clean."""
    shown_below, asked = Cleaning._shown_below, list[int]()

    def everything_at_first(self: Cleaning, hot: HotLog) -> int:
        asked.append(_ALL if not asked else shown_below(self, hot))
        return asked[-1]

    monkeypatch.setattr(Cleaning, "_shown_below", everything_at_first)
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs={**KEPT, "delete.retention.ms": "0"})
        await sealed(node, ("a", "1"))
        await sealed(node, ("a", None))
        await sealed(node, ("b", "0"))
        before = await manifest_of(led(node))
        assert await clean_bucket(node)
        assert asked == [_ALL, 0]
        assert (await manifest_of(led(node))).segments == before.segments, "the replacement is aborted"


async def test_no_segment_is_replaced_during_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tier process opens a segment by its file name."""
    ended, finished = Extensions.ended, Cleaning._finish_swap
    waits, is_uploading, replaced_during = asyncio.Event(), True, list[bool]()

    async def noted(self: Extensions, partition: Partition) -> None:
        waits.set()
        await ended(self, partition)

    def finish(self: Cleaning, *arguments: Any) -> bool:
        replaced_during.append(is_uploading)
        return finished(self, *arguments)

    monkeypatch.setattr(Extensions, "ended", noted)
    monkeypatch.setattr(Cleaning, "_finish_swap", finish)
    async with by_hand(tmp_path / "data", store()) as node:
        await node.create("t", configs={**KEPT, "remote.log.copy.disable": "true"})
        await put(node, ("a", "1"), ("a", "2"))
        await closed(node)
        job = cast(ExtendJob, SimpleNamespace(base=0, log_start=0))
        with node.node.work.tiering.extensions.under_way(led(node), job):
            cleaning_once = asyncio.create_task(clean_local(node))
            async with asyncio.timeout(60):
                await waits.wait()
            assert [each.offset for each in await node.read_all("t")] == [0, 1]
            is_uploading = False
        assert await cleaning_once
        assert replaced_during == [False]
        assert [each.offset for each in await node.read_all("t")] == [1]
