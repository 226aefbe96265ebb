"""Repair of a manifest: the evidence it uses and the cases it refuses, tested on manifests from real commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest import lineage, lookup, model, transitions
from storage_tiers.cold.manifest.commit import ReadSaved
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.model import Author, Manifest, ManifestWriter, State
from storage_tiers.cold.manifest.repair import Evidence, Refused, RepairPlan, basis, plan, repaired
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import PreconditionFailed, StoreBehind, TierCorrupt
from storage_tiers.types import EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import (
    DAY,
    IDS,
    EagerClock,
    Local,
    page_loader,
    stored_live,
    stored_manifest,
    tier_of,
)
from tests.storage_tiers.cold.test_offload_verification import DamagingStore
from tests.support.faulty_store import FaultyStore

WRITER = ManifestWriter(1, 7)
EVERYTHING = OffsetRange(0, 1000)
#: A local log whose records are all in the bucket.
UP_TO_DATE = OffsetRange(0, 0)
EPOCHS = (EpochEntry(1, 0),)


class World:
    """A partition with segments of ten records each; `manifests` holds the manifest after each commit."""

    def __init__(self, directory: Path) -> None:
        self.clock = EagerClock()
        self.store = MemoryStore(self.clock)
        self.local = Local(directory)
        self.tier = tier_of(self.store, self.clock)
        self.manifests: list[Manifest] = []
        self._commits = 0

    async def extend(self, segments: int = 1) -> Manifest:
        for _ in range(segments):
            manifest = self.tier.manifest
            self.manifests.append(await self.tier.extend(self.local.job(0 if manifest is None else manifest.end, 10)))
        return self.manifests[-1]

    def author(self) -> Author:
        self._commits += 1
        return Author(WRITER, f"{self._commits:032x}", self.clock.unix_ms(), lambda: "0" * 32)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def evidence(
    *missing: str,
    local: OffsetRange = EVERYTHING,
    log_start: int = 0,
    last_paged: model.RemoteSegment | None = None,
    unnamed: tuple[int, ...] = (),
    of: Manifest | None = None,
    lost: tuple[model.RemoteSegment, ...] = (),
) -> Evidence:
    """`missing` are object keys; `of` is the manifest whose inline segments name them."""
    segments = () if of is None else of.segments
    lost = lost or tuple(each for each in segments if {each.key, each.sidecar_key} & set(missing))
    return Evidence(set(missing), unnamed, last_paged, local, EPOCHS, log_start, lost)


def planned(found: RepairPlan | Refused) -> RepairPlan:
    assert isinstance(found, RepairPlan), found
    return found


async def test_a_store_that_shows_the_last_seen_state_is_not_repaired(world: World) -> None:
    older, newer = await world.extend(), await world.extend()
    assert basis(newer, older, None, UP_TO_DATE) is None
    assert basis(newer, newer, None, UP_TO_DATE) is None
    assert basis(newer, None, None, UP_TO_DATE) is None


@pytest.mark.parametrize("shown", ["gone", "older", "first"])
async def test_the_manifest_seen_counts_where_all_that_it_names_is_there(world: World, shown: str) -> None:
    await world.extend(40)
    saved = await world.tier.pin("keep")
    found = {"gone": None, "older": world.manifests[-2], "first": world.manifests[0]}[shown]
    assert basis(found, saved, None, UP_TO_DATE) == saved
    repair = planned(plan(saved, found, evidence()))
    manifest = repaired(repair, found, world.author())
    assert broken(manifest) is None
    assert manifest.commit == saved.commit + 1
    assert manifest.line != saved.line
    assert (manifest.segments, manifest.pages, manifest.pins, manifest.sidecar) == (
        saved.segments,
        saved.pages,
        saved.pins,
        saved.sidecar,
    )
    assert (manifest.end, manifest.log_start, manifest.swept, manifest.incarnation) == (
        saved.end,
        saved.log_start,
        saved.swept,
        7,
    )
    seen = lineage.seen_of(saved)
    assert seen is not None
    assert "another line" in str(lineage.fault(manifest, seen))


async def test_the_commit_number_is_above_every_one_seen(world: World) -> None:
    await world.extend(2)
    saved = world.manifests[0]
    shown = replace(world.manifests[1], line="f" * 32)
    manifest = repaired(planned(plan(saved, shown, evidence())), shown, world.author())
    assert manifest.commit == shown.commit + 1
    assert broken(manifest) is None


@pytest.mark.parametrize(("here", "expected"), [(15, 15), (0, 12)], ids=["the partition's", "the one shown"])
async def test_log_start_is_the_largest_seen(world: World, here: int, expected: int) -> None:
    saved = await world.extend(3)
    shown = await world.tier.raise_log_start(12)
    manifest = repaired(planned(plan(saved, shown, evidence(log_start=here))), shown, world.author())
    assert manifest.log_start == expected
    assert broken(manifest) is None


@pytest.mark.parametrize("name", ["leader_epoch", "swept"])
@pytest.mark.parametrize("whose", ["saved", "shown"])
async def test_the_largest_of_both_manifests_counts(world: World, name: str, whose: str) -> None:
    saved = await world.extend(3)
    shown = replace(saved, line="f" * 32)
    largest = getattr(saved, name) + 1
    if whose == "saved":
        saved = replace(saved, **{name: largest})
    else:
        shown = replace(shown, **{name: largest})
    manifest = repaired(planned(plan(saved, shown, evidence())), shown, world.author())
    assert getattr(manifest, name) == largest
    assert broken(manifest) is None


async def test_pins_of_both_manifests_are_kept_as_far_as_the_repair_reaches(world: World) -> None:
    await world.extend(2)
    saved = await world.tier.pin("seen")
    await world.tier.pin("not-seen")
    await world.extend()
    shown = await world.tier.pin("beyond")
    manifest = repaired(planned(plan(saved, shown, evidence())), shown, world.author())
    assert [(pin.name, pin.end) for pin in manifest.pins] == [("seen", 20), ("not-seen", 20)]
    assert broken(manifest) is None


async def test_missing_segments_at_the_end_are_offloaded_again_from_the_local_log(world: World) -> None:
    saved = await world.extend(4)
    lost = saved.segments[2]
    repair = planned(plan(saved, None, evidence(lost.sidecar_key, local=OffsetRange(20, 60), of=saved)))
    assert (repair.end, repair.again) == (20, 40)
    assert "offsets [20, 40) are offloaded again" in repair.summary
    manifest = repaired(repair, None, world.author())
    assert broken(manifest) is None
    assert [segment.base for segment in manifest.segments] == [0, 10]
    assert manifest.sidecar is not None
    assert manifest.sidecar.key == saved.segments[1].sidecar_key
    gone = {key for item in manifest.removed for key in item.keys}
    assert {saved.segments[2].key, saved.segments[3].key} <= gone
    again = transitions.extend(
        manifest,
        replace(saved.segments[2], key=saved.segments[2].key + "x", sidecar_key=saved.segments[2].sidecar_key + "x"),
        world.author(),
        leader_epoch=1,
        last_record_epoch=1,
        log_start=0,
    )
    assert again.end == 30
    assert transitions.broken_step(manifest, again) is None


async def test_if_all_is_missing_but_local_the_manifest_starts_over(world: World) -> None:
    saved = await world.extend(2)
    manifest = repaired(planned(plan(saved, None, evidence(saved.segments[0].key, of=saved))), None, world.author())
    assert (manifest.end, manifest.segments, manifest.sidecar, manifest.last_record_epoch) == (0, (), None, -1)
    assert broken(manifest) is None


@pytest.mark.parametrize("local", [OffsetRange(25, 60), OffsetRange(0, 39)])
async def test_missing_segments_that_are_not_local_are_requested(world: World, local: OffsetRange) -> None:
    saved = await world.extend(4)
    refused = plan(saved, None, evidence(saved.segments[2].key, local=local, of=saved))
    assert isinstance(refused, Refused)
    assert saved.segments[2].key in refused.why
    assert "put the object back" in refused.why


async def test_below_log_start_nothing_has_to_be_there(world: World) -> None:
    saved = await world.extend(4)
    repair = planned(
        plan(saved, None, evidence(saved.segments[0].key, local=OffsetRange(40, 40), log_start=10, of=saved))
    )
    assert repair.end == 40


async def test_a_pinned_segment_is_not_accepted_as_lost(world: World) -> None:
    await world.extend(3)
    saved = await world.tier.pin("audit")
    refused = plan(saved, None, evidence(saved.segments[1].key, of=saved))
    assert isinstance(refused, Refused)
    assert "audit" in refused.why


async def test_segments_in_a_page_cannot_be_cut(world: World) -> None:
    saved = await world.extend(80)
    page = saved.live_pages[0]
    first = next(iter(lookup.live_segments(saved, page_loader(world.store.blocking()))))
    for key, lost in ((page.key, ()), (first.key, (first,))):
        refused = plan(saved, None, evidence(key, lost=lost))
        assert isinstance(refused, Refused)
        assert key in refused.why


async def test_after_pages_the_manifest_ends_where_the_last_one_does(world: World) -> None:
    saved = await world.extend(80)
    segments = list(lookup.live_segments(saved, page_loader(world.store.blocking())))
    last_paged = segments[len(segments) - len(saved.segments) - 1]
    repair = planned(plan(saved, None, evidence(saved.segments[0].key, last_paged=last_paged, of=saved)))
    assert repair.end == last_paged.end
    manifest = repaired(repair, None, world.author())
    assert broken(manifest) is None
    assert manifest.sidecar is not None
    assert manifest.sidecar.key == last_paged.sidecar_key


async def test_a_deletion_is_the_last_state(world: World) -> None:
    saved = await world.extend()
    deleted = await world.tier.delete_partition()
    assert deleted.state is State.DELETED
    refused = basis(deleted, saved, None, UP_TO_DATE)
    assert isinstance(refused, Refused)
    assert "delete the topic and create it again" in refused.why


async def test_without_a_manifest_ever_seen_none_is_created(world: World) -> None:
    refused = basis(None, None, None, UP_TO_DATE)
    assert isinstance(refused, Refused)
    assert "Put the newest version of its manifest back" in refused.why


async def test_a_second_history_is_for_a_person_to_decide(world: World, tmp_path: Path) -> None:
    older = await world.extend()
    saved = await world.extend()
    other = World(tmp_path)
    other.store = world.store
    world.store.blocking().delete([older.ids.manifest_key])
    world.store.blocking().put(older.ids.manifest_key, encode(older))
    other.tier = tier_of(world.store, world.clock, seed=9)
    await other.tier.load()
    shown = await other.extend()
    assert (shown.commit, shown.recent == saved.recent) == (saved.commit, False)
    refused = basis(shown, saved, None, UP_TO_DATE)
    assert isinstance(refused, Refused)
    assert "another history" in refused.why


async def test_later_removals_do_not_make_an_older_manifest_a_second_history(world: World) -> None:
    """A writer has claimed the older manifest without adding a segment to it."""
    older = await world.extend(4)
    saved = await world.tier.expire(20)
    restore(world, older)
    claimed = await tier_of(world.store, world.clock, seed=9).claim(5)
    assert claimed.recent[-1] not in saved.recent
    assert basis(claimed, saved, None, UP_TO_DATE) == saved


async def test_a_complete_repair_by_another_node_is_accepted(world: World) -> None:
    saved = await world.extend(2)
    shown = repaired(planned(plan(saved, None, evidence())), None, world.author())
    assert basis(shown, saved, None, UP_TO_DATE) == shown
    assert basis(shown, saved, "a segment is lost", UP_TO_DATE) == saved


async def test_removed_segments_stay_removed(world: World) -> None:
    await world.extend(4)
    before = world.manifests[-1]
    saved = await world.tier.expire(20)
    world.clock.advance(2 * DAY / 1000)
    repair = planned(plan(saved, before, evidence(log_start=20)))
    manifest = repaired(repair, before, world.author())
    live = {segment.key for segment in manifest.segments}
    assert live.isdisjoint(key for item in saved.removed for key in item.keys)
    assert manifest.removed == saved.removed
    assert broken(manifest) is None


async def test_a_repair_by_another_node_keeps_records_only_in_this_log(world: World) -> None:
    saved = await world.extend(2)
    theirs = repaired(planned(plan(saved, None, evidence())), None, world.author())
    shown = replace(theirs, end=30, commit=theirs.commit + 1)
    refused = basis(shown, saved, None, OffsetRange(0, 25))
    assert isinstance(refused, Refused)
    assert "would be discarded" in refused.why
    assert basis(shown, saved, None, OffsetRange(0, 20)) == shown


async def test_a_newer_commit_of_the_same_line_is_not_taken_for_a_repair(world: World) -> None:
    saved = await world.extend(2)
    stray = replace(saved.segments[-1], base=20, end=30, key=saved.segments[-1].key + "x", added=model.Stamp(3, 0))
    shown = replace(
        saved,
        commit=4,
        recent=(saved.recent[0], *(model.CommitId(commit, f"another {commit}") for commit in (2, 3, 4))),
        segments=(*saved.segments, stray),
        end=30,
    )
    assert isinstance(basis(shown, saved, None, UP_TO_DATE), Refused)


async def test_an_older_manifest_is_not_committed_over_segments_that_came_later(world: World) -> None:
    saved = await world.extend(2)
    refused = plan(saved, None, evidence(unnamed=(20, 30), local=OffsetRange(40, 60)))
    assert isinstance(refused, Refused)
    assert saved.ids.manifest_key in refused.why
    assert planned(plan(saved, None, evidence(unnamed=(20, 30), local=OffsetRange(0, 60)))).end == 20
    # A single unnamed segment at the end offset is what an interrupted offload leaves.
    assert planned(plan(saved, None, evidence(unnamed=(20,), local=OffsetRange(0, 0)))).end == 20


# --- with objects -----------------------------------------------------------------------------------------------------
HELD = LocalEvidence(EVERYTHING, EPOCHS, 0)
NOTHING_HELD = LocalEvidence(OffsetRange(0, 0), EPOCHS, 0)


def restore(world: World, manifest: Manifest | None) -> None:
    """Replaces the bucket's manifest with an earlier one, or deletes it (None)."""
    blocking = world.store.blocking()
    blocking.delete([IDS.manifest_key])
    if manifest is not None:
        blocking.put(IDS.manifest_key, encode(manifest))


@pytest.mark.parametrize("shown", ["gone", "older", "damaged"])
async def test_a_repair_restores_everything_and_the_partition_continues(world: World, shown: str) -> None:
    saved = await world.extend(70)
    before = stored_live(world.store.blocking(), saved)
    restore(world, world.manifests[30] if shown == "older" else None)
    if shown == "damaged":
        world.store.blocking().put(IDS.manifest_key, encode(saved)[:-20])
    with pytest.raises((StoreBehind, TierCorrupt)):
        await world.tier.load()
    dry, nothing = await world.tier.repair(NOTHING_HELD, apply=False)
    assert (nothing, dry.refused) == (None, "")
    assert dry.summary == "commit 70 is committed again, up to offset 700"
    report, manifest = await world.tier.repair(NOTHING_HELD, apply=True)
    assert manifest is not None
    assert report == dry
    assert stored_live(world.store.blocking(), stored_manifest(world.store.blocking())) == before
    assert (await world.extend()).end == 710
    assert (await world.tier.repair(NOTHING_HELD, apply=True))[0] == RepairReport()


@pytest.mark.parametrize(
    "damage", ["segment gone", "segment flipped", "sidecar gone", "sidecar flipped", "another sidecar"]
)
async def test_objects_that_differ_from_the_offloaded_ones_count_as_missing(world: World, damage: str) -> None:
    saved = await world.extend(3)
    restore(world, None)
    blocking, segment = world.store.blocking(), saved.segments[1]
    key = segment.key if damage.startswith("segment") else segment.sidecar_key
    data = bytearray(blocking.get(key).data)
    blocking.delete([key])
    if damage == "another sidecar":
        blocking.put(key, blocking.get(saved.segments[0].sidecar_key).data)
    elif damage.endswith("flipped"):
        data[-1] ^= 1
        blocking.put(key, bytes(data))
    without, _ = await world.tier.repair(NOTHING_HELD, apply=False)
    if damage.startswith("segment"):
        assert key in without.refused
    else:
        assert "offsets [10, 20), whose segments lack only their .idx" in without.summary
    assert not blocking_has_manifest(world)
    report, manifest = await world.tier.repair(HELD, apply=True)
    assert manifest is not None
    assert "offsets [10, 30) are offloaded again" in report.summary
    assert (await world.extend(2)).end == 30


async def test_changed_bytes_are_found_even_without_the_stores_checksum(world: World) -> None:
    saved = await world.extend(3)
    store = DamagingStore(world.store, tells=False)
    tier = tier_of(store, world.clock, seed=5, read_saved=_reads(saved))
    tier.expect(lineage.seen_of(saved, "here"))
    restore(world, None)
    assert (await tier.repair(NOTHING_HELD, apply=False))[0].refused == ""
    blocking, segment = world.store.blocking(), saved.segments[1]
    data = bytearray(blocking.get(segment.key).data)
    data[-1] ^= 1
    blocking.delete([segment.key])
    blocking.put(segment.key, bytes(data))
    refused, _ = await tier.repair(NOTHING_HELD, apply=True)
    assert segment.key in refused.refused
    assert not blocking_has_manifest(world)


async def test_the_error_of_a_missing_page_names_it(world: World) -> None:
    saved = await world.extend(80)
    restore(world, world.manifests[0])
    world.store.blocking().delete([saved.live_pages[0].key])
    fresh = tier_of(world.store, world.clock, seed=5, read_saved=_reads(saved))
    fresh.expect(lineage.seen_of(saved, "here"))
    report, manifest = await fresh.repair(HELD, apply=True)
    assert manifest is None
    assert saved.live_pages[0].key in report.refused


async def test_a_repair_that_meets_another_manifest_changes_nothing(world: World) -> None:
    await world.extend(2)
    restore(world, world.manifests[0])
    gate = FaultyStore(world.store)
    held = gate.hold(2, "get", "manifests/")
    tier = tier_of(gate, world.clock, seed=6, read_saved=_reads(world.manifests[1]))
    tier.expect(lineage.seen_of(world.manifests[1], "here"))
    repairing = asyncio.ensure_future(tier.repair(HELD, apply=True))
    await held.reached.wait()
    restore(world, None)
    held.open()
    with pytest.raises(PreconditionFailed, match="plan its repair again"):
        await repairing
    assert not blocking_has_manifest(world)
    assert (await tier.repair(HELD, apply=True))[1] is not None
    assert stored_manifest(world.store.blocking()).end == 20


def blocking_has_manifest(world: World) -> bool:
    return any(info.key == IDS.manifest_key for info in world.store.blocking().list(""))


def _reads(saved: Manifest) -> ReadSaved:
    async def read(_: lineage.SeenManifest) -> Manifest:
        return saved

    return read
