"""A compacted segment is lost, and the segments that it replaced still exist: their copies replace it, in pages, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments import sidecar
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import assign, read_header
from storage_tiers.types import AbortedTransaction, OffsetRange
from tests.storage_tiers.cold.support import DAY, batches, stored_live, stored_manifest
from tests.storage_tiers.cold.test_accepted_loss import NOTHING, records, world
from tests.storage_tiers.cold.test_repair import World, blocking_has_manifest, restore
from tests.storage_tiers.compaction.support import batch

__all__ = ["world"]


async def compact(world: World, first: int, end: int) -> RemoteSegment:
    """Replaces the segments of offsets [first, end) with one that has the last record only; returns it."""
    old = [each for each in live(world) if first <= each.base and each.end <= end]
    job = world.local.job(first, end - first, data=batches(end - 1, 1))
    manifest = await world.tier.replace(job, old)
    return next(each for each in stored_live(world.store.blocking(), manifest) if each.base == first)


def live(world: World) -> list[RemoteSegment]:
    return stored_live(world.store.blocking(), stored_manifest(world.store.blocking()))


def lose(world: World, *segments: RemoteSegment) -> None:
    world.store.blocking().delete([each.key for each in segments])
    restore(world, None)


async def repaired(world: World, *accepted: tuple[int, int]) -> Manifest:
    _, manifest = await world.tier.repair(NOTHING, apply=True, accepted=tuple(OffsetRange(*each) for each in accepted))
    assert manifest is not None and broken(manifest) is None
    report = check_bucket(world.store.blocking(), FsckScope(), now_ms=world.clock.unix_ms())
    # The test's store has no cluster.json and no topic.json.
    assert {each.key.rpartition("/")[2] for each in report.findings} <= {"cluster.json", "topic.json"}
    return manifest


@pytest.mark.parametrize("count", [10, 200], ids=["in the manifest", "in a page"])
async def test_a_lost_segment_is_replaced_by_those_that_it_had_replaced(world: World, count: int) -> None:
    await world.extend(count)
    before = live(world)
    lose(world, await compact(world, 20, 50))
    said, _ = await world.tier.repair(NOTHING, apply=False)
    assert "offsets [20, 50) are copied from the segments that compaction had replaced" in said.summary
    assert "given up" not in said.summary and not blocking_has_manifest(world)
    await repaired(world)
    after = live(world)
    assert [(each.base, each.end) for each in after] == [(each.base, each.end) for each in before]
    assert [offset for each in after for offset in records(world, each)] == list(range(10 * count))
    assert not {each.key for each in after[2:5]} & {each.key for each in before[2:5]}, "their own keys are swept"
    world.clock.advance(3 * DAY / 1000)
    await world.tier.sweep(DAY)
    assert [offset for each in live(world) for offset in records(world, each)] == list(range(10 * count))
    assert (await world.extend()).end == 10 * count + 10


async def test_only_offsets_that_no_replaced_segment_holds_are_given_up(world: World) -> None:
    await world.extend(6)
    gone = live(world)[2]
    lose(world, gone, await compact(world, 10, 40))
    refused, _ = await world.tier.repair(NOTHING, apply=True)
    assert "offsets [20, 30);" in refused.refused and "--accept-loss 3:20-30" in refused.refused
    assert not blocking_has_manifest(world)
    manifest = await repaired(world, (20, 30))
    assert [each.records for each in manifest.segments] == [10, 10, 0, 10, 10, 10]


async def test_a_given_up_range_knows_no_producer_beyond_it(world: World) -> None:
    """The lost segment's sidecar exists and has the producers at the segment's end, which lies above the accepted loss."""
    world.local.snapshot = producer_at
    await world.extend(6)
    gone = live(world)[2]
    lose(world, gone, await compact(world, 10, 40))
    _, manifest = await world.tier.repair(NOTHING, apply=True, accepted=(OffsetRange(20, 30),))
    assert manifest is not None
    empty = manifest.segments[2]
    assert (empty.base, empty.end, empty.records) == (20, 30, 0)
    state = sidecar.parse(world.store.blocking().get(empty.sidecar_key).data, empty.sidecar_key)
    known = ProducerStateManager.restore(state.producer_state, now_ms=0).producers
    assert all(each.last_offset < empty.end for each in known.values())


def producer_at(end: int) -> bytes:
    """The snapshot of a producer whose last batch ends before `end`."""
    state, made = ProducerStateManager(), bytearray(batch(("a", "1"), producer=(7, 0, 0)))
    assign(made, base_offset=end - 1, leader_epoch=1)
    state.update(read_header(made), end - 1, now_ms=0)
    return state.snapshot()


async def test_the_newest_of_the_replaced_segments_are_taken(world: World) -> None:
    """The log is compacted three times, and the last two results are lost. The first result, the newest one left, is copied."""
    await world.extend(6)
    once = await compact(world, 0, 20)
    lose(world, await compact(world, 0, 40), await compact(world, 0, 50))
    manifest = await repaired(world)
    assert [each.base for each in manifest.segments] == [0, 20, 30, 40, 50]
    assert (manifest.segments[0].records, manifest.segments[0].crc32c) == (1, once.crc32c)


async def test_a_segment_that_lacks_only_its_sidecar_is_not_replaced_by_older_ones(world: World) -> None:
    """The replaced segments have records that compaction has deleted, and the segment's own bytes are intact."""
    await world.extend(6)
    once = await compact(world, 10, 40)
    world.store.blocking().delete([once.sidecar_key])
    restore(world, None)
    said, manifest = await world.tier.repair(NOTHING, apply=True)
    assert manifest is not None and "a new index" in said.summary, said
    (copy,) = (each for each in live(world) if each.base == 10)
    assert (copy.end, copy.records, copy.crc32c) == (40, 1, once.crc32c)


async def test_aborted_transactions_are_copied(world: World) -> None:
    aborted = (AbortedTransaction(7, 3, 5, 9),)
    await world.tier.extend(replace(world.local.job(0, 10), aborted=aborted))
    await world.extend(3)
    lose(world, await compact(world, 0, 20))
    _, manifest = await world.tier.repair(NOTHING, apply=True)
    assert manifest is not None
    (aborted_section,) = (each for each in manifest.segments[0].sections if each.name == sidecar.ABORTED)
    assert aborted_section.length > 0
