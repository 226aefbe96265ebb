"""Requests about the store, take-overs and pages: what each response guarantees beyond its type."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.model import (
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    PageKind,
    PageRef,
    RemoteSegment,
    Removed,
    Stamp,
    State,
)
from storage_tiers.cold.manifest.snapshot_files import put_snapshot
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process import context as context_module
from storage_tiers.cold.process.cluster_operations import HighestIncarnation, PublishTopic
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.operations import (
    AbortUploads,
    Claim,
    DeletePartition,
    FetchObject,
    LoadManifest,
    PageSegments,
    RaisePriority,
    TakePartition,
    TierCounters,
)
from storage_tiers.cold.process.page_work import page_segments
from storage_tiers.cold.process.question import Deadline
from storage_tiers.cold.process.repair_work import AT_ONCE
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.shared_work import SharedWork
from storage_tiers.cold.process.table import TABLE
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import InvalidRequest, StoreRefused, TierUnavailable
from tests.storage_tiers.cold.support import HOUR, IDS, TOPIC_ID, EagerClock, segment_of
from tests.storage_tiers.tier.support import QUICK, WRITER, Broker, batch, broker, until
from tests.support.clock import ManualClock, SeededRng
from tests.support.faulty_store import FaultyStore

CLUSTER = IDS.cluster_id


def ids_of(partition: int) -> Ids:
    return replace(IDS, partition=partition)


async def manifest_of(node: Broker, ids: Ids = IDS) -> Manifest:
    manifest = await node.client.ask(LoadManifest(ids, WRITER))
    assert manifest is not None
    return manifest


def test_retries_during_an_outage_change_nothing_in_the_store() -> None:
    """The first attempt may have taken effect although its response was lost."""
    assert {name for name, row in TABLE.items() if row.deadline is Deadline.READ} == {
        "FindSnapshot",
        "ListKeys",
        "ListManifests",
        "ListTopicIds",
        "ListTopics",
        "LoadManifest",
        "ReadCluster",
        "ReadTopic",
        "ShownCluster",
        "ShownTopic",
    }


async def test_operations_without_store_requests_do_not_report_it_as_back(tmp_path: Path) -> None:
    async with broker(tmp_path, settings=QUICK) as node:
        node.store.down = True
        with pytest.raises(TierUnavailable):
            await node.client.ask(LoadManifest(IDS, WRITER))
        await node.client.ask(RaisePriority("key", 0, 1))
        await node.client.refresh_counters()
        assert node.client.trouble is not None
        node.store.down = False
        await node.client.ask(LoadManifest(IDS, WRITER))
        assert node.client.trouble is None


# --- the highest incarnation ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("highest", [0, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, "topic.json", "snapshot"])
async def test_the_highest_incarnation_is_found_in_any_object(tmp_path: Path, highest: int | str) -> None:
    async with broker(tmp_path) as node:
        for partition in range(AT_ONCE + 2):
            writer = ManifestWriter(1, 9 if partition == highest else 3)
            await node.client.ask(Claim(ids_of(partition), writer, 0))
        incarnation = 9 if highest == "topic.json" else 3
        await node.client.ask(PublishTopic(TopicState(CLUSTER, IDS.topic, TOPIC_ID, State.LIVE, 20, incarnation)))
        await put_snapshot(node.store, CLUSTER, 9 if highest == "snapshot" else 3, 17, 2, b"content")
        found = await node.client.ask(HighestIncarnation(CLUSTER))
        assert found.number == 9
        names = {"topic.json": "topic.json", "snapshot": "/metadata/"}
        assert (
            names.get(str(highest), ids_of(int(highest)).manifest_key if isinstance(highest, int) else "") in found.key
        )


# --- abandoned offloads ------------------------------------------------------------------------------------------------
async def test_an_offload_is_ended_once_the_grace_has_passed_on_the_stores_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    old = store.blocking().begin_upload(f"{CLUSTER}/old")
    clock.advance(HOUR / 1000)
    young = store.blocking().begin_upload(f"{CLUSTER}/young")
    async with broker(tmp_path, store=store) as node:
        assert await node.client.ask(AbortUploads(f"{CLUSTER}/", HOUR)) == 1
        assert [upload async for upload in store.unfinished_uploads("")] == [young]
        assert await node.client.ask(AbortUploads(f"{CLUSTER}/", HOUR)) == 0
        assert await node.client.ask(AbortUploads(f"{CLUSTER}/", 0)) == 1
    assert old != young


# --- a partition that is taken over -----------------------------------------------------------------------------------
NEWER = ManifestWriter(2, 5)


@pytest.mark.parametrize(("had", "least", "has"), [(3, 7, 7), (7, 3, 7), (None, 7, 7), (None, -1, 0)])
async def test_a_partition_is_claimed_under_the_highest_epoch_in_the_bucket(
    tmp_path: Path, had: int | None, least: int, has: int
) -> None:
    async with broker(tmp_path) as node:
        if had is not None:
            await node.client.ask(Claim(IDS, WRITER, had))
        taken = await node.client.ask(TakePartition(IDS, NEWER, least, with_producers=False))
        manifest = await node.client.ask(LoadManifest(IDS, NEWER))
        assert manifest is not None
        assert (taken.leader_epoch, manifest.leader_epoch, manifest.incarnation) == (has, has, 5)


async def test_inspecting_a_partition_commits_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as node:
        before = await node.offload(batch(0), 0, 1)
        taken = await node.client.ask(TakePartition(IDS, NEWER, 7, with_producers=False, dry=True))
        assert (taken.end, taken.leader_epoch) == (1, before.leader_epoch)
        assert await manifest_of(node) == before


async def test_a_deleted_partition_stays_as_it_is(tmp_path: Path) -> None:
    async with broker(tmp_path) as node:
        await node.client.ask(Claim(IDS, WRITER, 3))
        before = await node.client.ask(DeletePartition(IDS, WRITER))
        taken = await node.client.ask(TakePartition(IDS, NEWER, 7, with_producers=True))
        assert taken.deleted
        assert await manifest_of(node) == before


async def test_a_missing_manifest_is_not_started_over_above_offset_zero(tmp_path: Path) -> None:
    """The take-over is refused even when one segment is left."""
    async with broker(tmp_path) as node:
        await node.offload(batch(0), 0, 1)
        manifest = await node.offload(batch(1), 1, 2)
        first = manifest.segments[0]
        await node.store.delete([IDS.manifest_key, first.key, first.sidecar_key])
        with pytest.raises(StoreRefused, match="has no manifest"):
            await node.client.ask(TakePartition(IDS, NEWER, 0, with_producers=False, dry=True))


# --- pages and caches -------------------------------------------------------------------------------------------------
def context(directory: Path, store: ObjectStore | None = None, **settings: int) -> TierContext:
    def counters() -> TierCounters:
        raise AssertionError("nobody asks")

    async def opened() -> ObjectStore:
        assert store is not None, "everything is in memory"
        return store

    async def open_store(_: StoreLocation) -> ObjectStore:
        raise AssertionError("the context opens no store itself")

    bounds = TierSettings(**settings)
    shared = SharedWork(open_store)
    return TierContext(shared, 1, opened, bounds, str(directory), EagerClock(), SeededRng(1), counters)


def ref_of(
    name: str, segments: tuple[RemoteSegment, ...], *, level: int = 0, kind: PageKind = PageKind.LIVE
) -> PageRef:
    return PageRef(
        kind,
        name,
        segments[0].base,
        segments[-1].end,
        len(segments),
        100,
        0,
        min(segment.min_timestamp for segment in segments),
        max(segment.max_timestamp for segment in segments),
        len(segments),
        100,
        1,
        level=level,
    )


def remembered(directory: Path) -> tuple[TierContext, PageRef]:
    """A page of two pages of two segments each; segment n holds offsets [10n, 10n + 10), all with timestamp 100n."""
    made = [segment_of(IDS, 10 * n, 10 * n + 10, n + 1, timestamp=100 * n) for n in range(4)]
    halves = tuple(made[:2]), tuple(made[2:])
    refs = tuple(ref_of(f"page-{n}", half) for n, half in enumerate(halves))
    upper, known = ref_of("upper", tuple(made), level=1), context(directory)
    for ref, half in zip(refs, halves, strict=True):
        known._pages.put(ref.key, ManifestPage(PageKind.LIVE, segments=half))
    known._pages.put(upper.key, ManifestPage(PageKind.LIVE, pages=refs))
    return known, upper


@pytest.mark.parametrize(
    ("start", "timestamp", "base"),
    [
        (0, None, 0),
        (9, None, 0),
        (10, None, 10),
        (20, None, 20),
        (39, None, 30),
        (40, None, None),
        (0, 0, 0),
        (0, 1, 10),
        (0, 100, 10),
        (0, 101, 20),
        (0, 300, 30),
        (0, 301, None),
        (20, 0, 20),
    ],
)
async def test_segments_of_a_page_of_pages_begin_with_the_first_that_can_answer(
    tmp_path: Path, start: int, timestamp: int | None, base: int | None
) -> None:
    known, upper = remembered(tmp_path)
    found = await page_segments(known, PageSegments(IDS, upper, start, timestamp))
    assert (found[0].base if found else None) == base


@pytest.mark.parametrize("level", [0, 1])
async def test_a_page_of_removed_segments_is_refused(tmp_path: Path, level: int) -> None:
    known, upper = remembered(tmp_path)
    ref = replace(upper, kind=PageKind.REMOVED, key="removed", level=level)
    gone = ManifestPage(PageKind.REMOVED, removed=(Removed(Stamp(1, 0), key="gone"),))
    known._pages.put(ref.key, ManifestPage(PageKind.REMOVED, pages=(ref,)) if level else gone)
    with pytest.raises(InvalidRequest, match="removed segments"):
        await known.live_page(IDS, ref)


async def test_the_longest_unused_tiers_are_forgotten_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "MAX_PARTITIONS", 2)
    known = context(tmp_path, MemoryStore(SystemClock()))
    first, second = [await known.partition(ids_of(number), WRITER) for number in (1, 2)]
    assert await known.partition(ids_of(1), WRITER) is first
    third = await known.partition(ids_of(3), WRITER)
    assert len(known._partitions) == 2
    assert await known.partition(ids_of(3), WRITER) is third
    assert await known.partition(ids_of(1), WRITER) is first
    assert await known.partition(ids_of(2), WRITER) is not second


async def test_only_the_awaited_download_goes_first_and_none_is_remembered(tmp_path: Path) -> None:
    """Two parts of one object are queued, and the later one is raised."""
    store = FaultyStore(MemoryStore(SystemClock()))
    await store.put("object", bytes(30))
    downloads, ended = context(tmp_path, store, download_connections=1).downloads, list[int]()
    under_way = store.hold(1, "get")

    async def fetched(position: int) -> None:
        await downloads.fetch_object(FetchObject("object", position, 10, urgent=position == 0))
        ended.append(position)

    tasks = [asyncio.ensure_future(fetched(position)) for position in (0, 10, 20)]
    await under_way.reached.wait()
    await until(lambda: len(downloads._wanted) == 3)
    await downloads.raise_priority(RaisePriority("object", 20, 10))
    under_way.open()
    await asyncio.gather(*tasks)
    assert ended == [0, 20, 10]
    assert downloads._wanted == {}
