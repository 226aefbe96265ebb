"""The bucket's segments are compacted as the local ones are: the records that stay, and those that hide records in the other
tier."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import OffsetQuery, OffsetSpec
from service.broker.background.cleaner.cleaning import _ALL, Cleaning
from service.broker.background.cleaner.cold_cleaning import ColdCleaning
from service.broker.background.tiering import Tiering
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.partition import Partition
from service.fsck.bucket import FsckScope
from service.fsck.bucket import check_bucket as fsck
from service.fsck.manifest_check import segment_faults
from storage_tiers.clock import SystemClock
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import TierUnavailable
from storage_tiers.policy.compaction import CleaningLimits, CleaningPlan
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.background.cleaner.test_cleaning import (
    COMPACTED,
    EAGER,
    cleaning,
    closed,
    led,
    put,
    store,
    table,
)
from tests.service.broker.support import Running, manifest_of, running, until
from tests.storage_tiers.compaction.support import LATER_MS, batch
from tests.storage_tiers.hot.support import START_MS, marker
from tests.support.faulty_store import FaultyStore


async def test_tombstones_are_compared_with_the_bucket_again_at_the_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may have been offloaded since the cleaning was ordered."""
    hidden_below, asked = Cleaning._hidden_below, list[int]()

    def everything_at_first(self: Cleaning, partition: Partition) -> int:
        asked.append(_ALL if not asked else hidden_below(self, partition))
        return asked[-1]

    monkeypatch.setattr(Cleaning, "_hidden_below", everything_at_first)
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
        await put(node, ("a", "in the bucket"), ("b", "1"))
        await node.seal("t")
        await node.evicted("t")
        led(node).log.hot.reconfigure(replace(led(node).log.hot.settings, remote_copy_disable=True))
        await put(node, ("a", None), ("b", "2"))
        await closed(node)
        await put(node, ("c", "1"))
        await closed(node)
        before = led(node).log.hot.segments()
        due = cleaning(node)._local(led(node))
        assert due is not None
        await cleaning(node)._try(due)
        assert asked == [_ALL, 0]
        assert led(node).log.hot.segments() == before, "the swap is aborted"
        await cleaning(node)._process.end()


async def test_a_rewritten_segment_has_the_state_and_the_aborted_transactions_of_the_last_it_replaces(
    tmp_path: Path,
) -> None:
    memory = MemoryStore(SystemClock())
    async with running(tmp_path / "data", FaultyStore(memory), broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1", "delete.retention.ms": "60000"})
        for number in range(20):
            producer = number % 3
            made = batch(("a", f"{number}" * 40), producer=(producer, 0, number // 3), transactional=True)
            led(node).append_validated(memoryview(made), read_header(made), origin=AppendOrigin.COORDINATOR)
            kind = ControlKind.ABORT if number % 2 else ControlKind.COMMIT
            led(node).append_validated(
                memoryview(end := marker(kind, producer)), read_header(end), origin=AppendOrigin.COORDINATOR
            )
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) >= 36)
        manifest = await manifest_of(led(node))
    store_of = memory.blocking()
    states = {
        item.segment.end: sidecar.parse(store_of.get(item.segment.sidecar_key).data)
        for item in sorted(manifest.removed, key=lambda each: -each.at.commit)
        if item.segment is not None
    }
    rewritten = [segment for segment in manifest.segments if segment.end in states]
    assert rewritten
    for segment in rewritten:
        found = sidecar.parse(store_of.get(segment.sidecar_key).data)
        assert (found.epochs, found.producer_state) == (
            states[segment.end].epochs,
            states[segment.end].producer_state,
        )
    first = sidecar.parse(store_of.get(rewritten[0].sidecar_key).data)
    assert first.aborted, "their markers stay for a minute"


async def test_the_buckets_segments_are_compacted_and_become_few(tmp_path: Path) -> None:
    bucket = store()
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        await node.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
        for number in range(300):
            await put(node, (f"k{number % 7}", f"{number}"), ("gone", f"{number}"))
            if number % 30 == 0:
                await node.seal("t")
        await put(node, ("gone", None))
        await node.seal("t")
        await node.evicted("t")
        for number in range(2):  # the newest segment of the bucket stays as it is
            await put(node, ("last", f"{number}"))
            await node.seal("t")
        await node.evicted("t")
        await until(lambda: bucket_cleaned_to(node) == 602)
        expected = {f"k{number % 7}": f"{number}" for number in range(293, 300)} | {"last": "1"}
        assert table(await node.read_all("t")) == expected
        manifest = await manifest_of(led(node))
        assert (manifest.log_start, manifest.end) == (0, 603)
        assert not manifest.pages
        assert len(manifest.segments) <= 6
        assert sum(segment.records for segment in manifest.segments) <= 12
        assert len(manifest.removed) >= 15, "their objects are swept after the grace"
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        assert table(await node.read_all("t")) == expected
    async with running(tmp_path / "new", bucket, take_over=node.node.cluster_id) as node:
        await until(lambda: not led(node).is_recovering)
        assert table(await node.read_all("t")) == expected


async def test_the_newest_record_is_found_beside_an_emptied_batch_that_was_newer(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    async with running(tmp_path / "data", FaultyStore(memory), broker=EAGER) as node:
        configs = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "local.retention.bytes": "1"}
        await node.create("t", configs={**COMPACTED, **configs})
        await node.append_batch("t", batch(("a", "1"), producer=(7, 0, 0), timestamps=[START_MS + 900]))
        await node.append_batch("t", batch(("a", "2"), ("b", "1")))
        for number in range(3):
            await node.append_batch("t", batch(("c", f"{number}"), timestamps=[START_MS - 9 + number]))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) >= 5)
        await node.evicted("t")
        first, *_ = (await manifest_of(led(node))).segments
        (_, emptied), *_ = headers(memory.blocking().get(first.key).data)
        assert (emptied.count, emptied.max_timestamp) == (0, START_MS + 900), "its producer's last batch"
        for start in (0, 1):  # a log start inside the segment takes another path
            if start:
                await node.log.delete_records(TopicPartition("t", 0), start)
            query = OffsetQuery(TopicPartition("t", 0), OffsetSpec.MAX_TIMESTAMP)
            (newest,) = await node.log.list_offsets([query])
            assert isinstance(newest, TimestampOffset)
            assert (newest.timestamp, newest.offset) == (START_MS + 1, 2)
    report = fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms())
    assert report.findings == []


@pytest.mark.parametrize(
    ("times", "is_due"),
    [([-1], False), ([-1, START_MS], True), ([START_MS], True), ([LATER_MS], False), ([-1, LATER_MS], False)],
)
async def test_the_buckets_records_are_due_by_age_whatever_their_least_timestamp_is(
    tmp_path: Path, times: list[int], is_due: bool
) -> None:
    configs = {**COMPACTED, "min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "1000"}
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=configs)
        for stamps in (times, [START_MS]):
            await node.append_batch("t", batch(*[("a", "1")] * len(stamps), timestamps=stamps))
            await node.seal("t")
        plan = await bucket_plan(node, now_ms=LATER_MS)
        assert plan is not None
        assert plan.is_due == is_due


async def test_a_tombstone_that_was_cleaned_once_is_due_by_age_again(tmp_path: Path) -> None:
    """Its batch has the delete horizon in place of the first timestamp, beyond every record's timestamp."""
    configs = {**COMPACTED, "delete.retention.ms": str(10**12)}
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=configs)
        for key in ("a", "b", "c"):
            await put(node, (key, None))
            await node.seal("t")
        await until(lambda: bucket_cleaned_to(node) >= 2)
        first, *_ = (await manifest_of(led(node))).segments
        assert first.min_timestamp > first.max_timestamp
        cold = cleaning(node)._cold
        assert cold is not None
        cold._known[led(node).log.hot] = cold._known[led(node).log.hot]._replace(cleaned_to=0)
        plan = await bucket_plan(node, now_ms=LATER_MS)
        assert plan is not None
        assert plan.is_overdue


async def test_others_have_a_turn_between_the_plans_of_logs_with_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    async with running(tmp_path / "data", store(), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=COMPACTED)
        for number in range(3):
            await put(node, ("a", f"{number}"))
            await node.seal("t")
        for most in (1000, 3, 3):
            monkeypatch.setattr("service.broker.background.cleaner.cold_cleaning.VIEWS_A_TURN", most)
            turns.clear()
            asyncio.get_running_loop().call_soon(turns.append, most)
            assert await bucket_plan(node, now_ms=LATER_MS) is not None
        assert turns == [3]


async def bucket_plan(node: Running, *, now_ms: int) -> CleaningPlan | None:
    """The plan for the dirty part of the bucket; records older than a second are due."""
    cold = cleaning(node)._cold
    assert cold is not None
    return await cold.plan(led(node), now_ms, CleaningLimits(0, 1000, 1.0))


async def test_a_segment_that_was_merged_before_its_offload_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's end now lies within another segment, whose last batch before this end may end earlier. The cleaning began
    while the log was not offloaded."""
    memory = MemoryStore(SystemClock())
    async with running(tmp_path / "data", FaultyStore(memory), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=COMPACTED)
        settings = led(node).log.hot.settings
        led(node).log.hot.reconfigure(replace(settings, remote_copy_disable=True))
        for number in range(3):
            await put(node, (f"kept {number}", ""))
            await put(node, ("a", f"{number}"))
            await closed(node)
        producers = Tiering._producers
        due = cleaning(node)._local(led(node))
        assert due is not None

        async def swapped_meanwhile(self: Tiering, *arguments: Any) -> tuple[str, str]:
            monkeypatch.undo()
            await cleaning(node)._try(due)
            return await producers(self, *arguments)

        monkeypatch.setattr(Tiering, "_producers", swapped_meanwhile)
        led(node).log.hot.reconfigure(settings)
        await node.seal("t")
        manifest = await manifest_of(led(node))
        await cleaning(node)._process.end()
    assert Tiering._producers is producers, "the swap was made"
    assert [(segment.base, segment.end) for segment in manifest.segments] == [(0, 6)]
    assert fsck(memory.blocking(), FsckScope(), now_ms=SystemClock().unix_ms()).findings == []


async def test_a_rewritten_segment_is_of_no_newer_leader_epoch_than_its_manifest(tmp_path: Path) -> None:
    """The first commit after a start may be a replacement, which does not raise the manifest's epoch."""
    bucket = store()
    async with running(tmp_path / "data", bucket, broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=COMPACTED)
        for number in range(4):
            await put(node, ("a", f"{number}"), ("b", f"{number}"))
            await node.seal("t")
        before = await manifest_of(led(node))
    async with running(tmp_path / "data", bucket, broker=EAGER) as node:
        await until(lambda: bucket_cleaned_to(node) > 0)
        manifest = await manifest_of(led(node))
    assert manifest.segments[0].key != before.segments[0].key
    assert [fault for segment in manifest.segments for fault in segment_faults(manifest, segment)] == []


async def test_a_log_that_could_not_be_looked_at_counts_as_failed_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log stops counting as failed even if nothing in it is to be cleaned."""
    monkeypatch.setattr("service.broker.background.cleaner.cleaning.RETRY_MS", 0)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs=COMPACTED)
        with monkeypatch.context() as patch:
            patch.setattr(ColdCleaning, "plan", unavailable)
            await until(lambda: cleaning(node).uncleanable == {led(node).log.hot})
        await until(lambda: not cleaning(node).uncleanable)


async def unavailable(*_: object) -> None:
    raise TierUnavailable("the store does not answer")


def bucket_cleaned_to(node: Running, topic: str = "t") -> int:
    cold = cleaning(node)._cold
    assert cold is not None
    return cold.cleaned_to(led(node, topic))
