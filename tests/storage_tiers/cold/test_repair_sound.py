"""Repair reports the lost objects of a sound manifest, and reports none for a partition without commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.types import OffsetRange
from tests.storage_tiers.cold.support import IDS, Local, no_producers, stored_live, stored_manifest, tier_of
from tests.storage_tiers.cold.test_repair import EPOCHS, HELD, NOTHING_HELD, World, restore
from tests.support.faulty_store import FaultyStore

EMPTY = LocalEvidence(OffsetRange(0, 7), EPOCHS, 0, uncommitted=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.local = Local(tmp_path, snapshot=no_producers)
    return made


@pytest.mark.parametrize("segments", [3, 80], ids=["no pages", "pages"])
async def test_complete_objects_need_one_listing_and_no_repair(world: World, segments: int) -> None:
    before = await world.extend(segments)
    store = FaultyStore(world.store)
    tier = tier_of(store, world.clock, seed=5)
    assert await tier.repair(NOTHING_HELD, apply=True) == (RepairReport(), None)
    assert stored_manifest(world.store.blocking()) == before
    asked = [operation for operation, key in store.calls if "/segments/" in key]
    assert asked == ["list"]


@pytest.mark.parametrize("place", [0, 3, 79], ids=["in a page", "further in the page", "the last"])
@pytest.mark.parametrize("damage", ["segment gone", "segment cut"])
async def test_a_lost_object_is_named_and_accepted_only_by_its_offsets(world: World, place: int, damage: str) -> None:
    saved = await world.extend(80)
    blocking, before = world.store.blocking(), stored_live(world.store.blocking(), saved)
    gone = before[place]
    key = gone.key
    kept = blocking.get(key).data
    blocking.delete([key])
    if damage.endswith("cut"):
        blocking.put(key, kept[:-1])
    for apply in (False, True):
        refused, manifest = await world.tier.repair(NOTHING_HELD, apply=apply)
        assert manifest is None and key in refused.refused and "put the object back" in refused.refused
        assert f"--accept-loss {IDS.partition}:{gone.base}-{gone.end}" in refused.refused
    assert stored_manifest(blocking) == saved
    accepted = (OffsetRange(gone.base, gone.end),)
    if place == 0:
        blocking.delete([key])
        blocking.put(key, kept)
        assert await world.tier.repair(NOTHING_HELD, apply=True) == (RepairReport(), None)
        return
    _, manifest = await world.tier.repair(NOTHING_HELD, apply=True, accepted=accepted)
    assert manifest is not None and broken(manifest) is None and manifest.commit == saved.commit + 1
    assert [each for each in stored_live(blocking, manifest) if each.base != gone.base] == [
        each for each in before if each.base != gone.base
    ]
    assert await world.tier.repair(NOTHING_HELD, apply=True) == (RepairReport(), None)
    assert (await world.extend()).end == 810


async def test_a_lost_segment_is_restored_from_the_local_log(world: World) -> None:
    saved = await world.extend(5)
    world.store.blocking().delete([saved.segments[3].key])
    dry, _ = await world.tier.repair(HELD, apply=False)
    assert "up to offset 30; offsets [30, 50) are offloaded again from the local log" in dry.summary
    report, manifest = await world.tier.repair(HELD, apply=True)
    assert report == dry and manifest is not None and manifest.end == 30
    assert (await world.extend(2)).end == 50
    assert await world.tier.repair(HELD, apply=True) == (RepairReport(), None)


@pytest.mark.parametrize(
    ("damage", "known"),
    [("gone", True), ("gone", False), ("cut", True), ("cut", False), ("flipped", False)],
)
async def test_the_error_of_a_lost_page_names_it(world: World, damage: str, known: bool) -> None:
    """`known`: the tier still has the page in memory."""
    saved = await world.extend(80)
    key = saved.live_pages[0].key
    tier = world.tier if known else tier_of(world.store, world.clock, seed=5)
    kept = damaged(world, key, damage)
    for apply in (False, True):
        refused, manifest = await tier.repair(HELD, apply=apply)
        assert manifest is None and key in refused.refused and "put it back" in refused.refused
    world.store.blocking().delete([key])
    world.store.blocking().put(key, kept)
    assert await tier.repair(HELD, apply=True) == (RepairReport(), None)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
async def test_a_manifest_is_not_made_again_over_a_damaged_page_that_is_in_memory(world: World, damage: str) -> None:
    saved = await world.extend(80)
    key = saved.live_pages[0].key
    damaged(world, key, damage)
    restore(world, None)
    refused, manifest = await world.tier.repair(HELD, apply=True)
    assert manifest is None and key in refused.refused and "put it back" in refused.refused


def damaged(world: World, key: str, damage: str) -> bytes:
    """Damages the object; returns its former content."""
    blocking = world.store.blocking()
    kept = blocking.get(key).data
    blocking.delete([key])
    if damage != "gone":
        blocking.put(key, kept[:-1] if damage == "cut" else bytes((kept[0] ^ 1,)) + kept[1:])
    return kept


async def test_segments_below_log_start_are_not_missed(world: World) -> None:
    saved = await world.extend(3)
    world.store.blocking().delete([saved.segments[0].key])
    assert (await world.tier.repair(NOTHING_HELD, apply=False))[0].refused
    assert await world.tier.repair(replace(NOTHING_HELD, log_start=10), apply=True) == (RepairReport(), None)


async def test_segments_that_a_newer_manifest_dropped_are_not_missed(world: World) -> None:
    """The segment expires and is swept while the repair lists the objects."""
    await world.extend(3)
    store = FaultyStore(world.store)
    held = store.hold(1, "list", "segments/")
    looking = asyncio.ensure_future(tier_of(store, world.clock, seed=5).repair(NOTHING_HELD, apply=False))
    await held.reached.wait()
    await world.tier.raise_log_start(10)
    expired = await world.tier.expire(10)
    world.store.blocking().delete([key for item in expired.removed for key in item.keys])
    held.open()
    assert await looking == (RepairReport(), None)


# --- without commits --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("objects", ["none", "an offload that was cut", "what nobody knows"])
async def test_a_partition_without_commits_misses_nothing(world: World, objects: str) -> None:
    if objects == "an offload that was cut":
        await world.extend()
        restore(world, None)
    elif objects == "what nobody knows":
        world.store.blocking().put(f"{IDS.segments_prefix}notes.txt", b"by hand")
    fresh = tier_of(world.store, world.clock, seed=5)
    for apply in (False, True):
        assert await fresh.repair(EMPTY, apply=apply) == (RepairReport(), None)


@pytest.mark.parametrize("evidence", ["two segments", "pages", "a damaged manifest", "the node's own"])
async def test_any_evidence_of_commits_requests_the_manifest(world: World, evidence: str) -> None:
    saved = await world.extend({"two segments": 2, "pages": 80}.get(evidence, 1))
    restore(world, None)
    local, blocking = EMPTY, world.store.blocking()
    if evidence == "pages":
        blocking.delete([info.key for info in blocking.list(IDS.segments_prefix)])
    elif evidence == "a damaged manifest":
        blocking.put(IDS.manifest_key, encode(saved)[:-20])
    elif evidence == "the node's own":
        local = replace(EMPTY, uncommitted=False)
    refused, manifest = await tier_of(world.store, world.clock, seed=5).repair(local, apply=True)
    assert manifest is None and "Put the newest version of its manifest back" in refused.refused
