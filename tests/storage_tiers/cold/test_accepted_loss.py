"""A partition that has lost its manifest and, for good, a segment: only offsets that the operator names are given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments.repairer import LocalEvidence, empty_segment
from storage_tiers.records.batch import headers
from storage_tiers.records.decoder import decode_batch
from storage_tiers.types import EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import Local, no_producers, stored_live, stored_manifest
from tests.storage_tiers.cold.test_repair import World, blocking_has_manifest, restore

#: The local log holds no record: offsets start and end at 700.
NOTHING = LocalEvidence(OffsetRange(700, 700), (EpochEntry(1, 0),), 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.local = Local(tmp_path, snapshot=no_producers)
    return made


def records(world: World, segment: RemoteSegment) -> list[int]:
    data = world.store.blocking().get(segment.key, segment.position, segment.length).data
    return [r.offset for at, header in headers(data) for r in decode_batch(data[at : at + header.size])]


async def lose(world: World, count: int, *lost: int) -> list[RemoteSegment]:
    """Extends by `count` segments, deletes the manifest and the `lost` objects, and returns the live segments."""
    saved = await world.extend(count)
    segments = stored_live(world.store.blocking(), saved)
    world.store.blocking().delete([segments[place].key for place in lost])
    restore(world, None)
    return segments


@pytest.mark.parametrize("place", [0, 3, 69], ids=["in a page", "further in the page", "the last"])
async def test_lost_segments_are_accepted_if_their_offsets_are_named(world: World, place: int) -> None:
    before = await lose(world, 70, place)
    gone = before[place]
    dry, _ = await world.tier.repair(NOTHING, apply=True)
    assert f"offsets [{gone.base}, {gone.end})" in dry.refused
    assert f"--accept-loss {world.tier.ids.partition}:{gone.base}-{gone.end}" in dry.refused
    assert not blocking_has_manifest(world)
    accepted = (OffsetRange(gone.base, gone.end),)
    said, nothing = await world.tier.repair(NOTHING, apply=False, accepted=accepted)
    assert nothing is None and f"offsets [{gone.base}, {gone.end}) are given up" in said.summary
    assert not blocking_has_manifest(world)
    _, manifest = await world.tier.repair(NOTHING, apply=True, accepted=accepted)
    assert manifest is not None and broken(manifest) is None
    assert manifest == stored_manifest(world.store.blocking())
    after = stored_live(world.store.blocking(), manifest)
    assert [each for each in after if each.base != gone.base] == [each for each in before if each.base != gone.base]
    assert [(each.base, each.end) for each in after] == [(each.base, each.end) for each in before]
    assert records(world, after[place]) == [] and after[place].records == 0
    assert gone.key in {key for item in manifest.removed for key in item.keys}
    assert (await world.extend()).end == 710
    report = check_bucket(world.store.blocking(), FsckScope(), now_ms=world.clock.unix_ms())
    # The test's store has no cluster.json and no topic.json.
    assert {each.key.rpartition("/")[2] for each in report.findings} <= {"cluster.json", "topic.json"}


@pytest.mark.parametrize(
    "accepted", [[(0, 10)], [(10, 30)], [(10, 15)], [(10, 20), (30, 40)], [(5, 20)], [(10, 20), (10, 20)]]
)
async def test_only_lost_segments_are_accepted(world: World, accepted: list[tuple[int, int]]) -> None:
    await lose(world, 5, 1)
    named = tuple(OffsetRange(*each) for each in accepted)
    refused, manifest = await world.tier.repair(NOTHING, apply=True, accepted=named)
    assert manifest is None and "offsets [10, 20)" in refused.refused
    assert not blocking_has_manifest(world)


async def test_a_loss_accepted_after_log_start_rose_leaves_a_sound_bucket(world: World) -> None:
    """The epoch history of the local log begins at its log start; those of the following segments begin earlier."""
    await world.extend(6)
    saved = await world.tier.raise_log_start(15)
    gone = saved.segments[2]
    world.store.blocking().delete([gone.key])
    restore(world, None)
    local = LocalEvidence(OffsetRange(700, 700), (EpochEntry(1, 15),), 15)
    _, manifest = await world.tier.repair(local, apply=True, accepted=(OffsetRange(gone.base, gone.end),))
    assert manifest is not None
    report = check_bucket(world.store.blocking(), FsckScope(), now_ms=world.clock.unix_ms())
    assert {each.key.rpartition("/")[2] for each in report.findings} <= {"cluster.json", "topic.json"}


async def test_without_a_loss_nothing_is_accepted(world: World) -> None:
    await lose(world, 3)
    refused, manifest = await world.tier.repair(NOTHING, apply=True, accepted=(OffsetRange(0, 10),))
    assert manifest is None and "[0, 10) are not lost" in refused.refused
    assert "Run this without --accept-loss" in refused.refused
    _, manifest = await world.tier.repair(NOTHING, apply=True)
    assert manifest is not None and manifest.end == 30


async def test_segments_in_the_local_log_are_not_accepted_as_lost(world: World) -> None:
    """Only the older loss must be named; the newer segment is offloaded again."""
    await lose(world, 6, 1, 4)
    held = LocalEvidence(OffsetRange(40, 60), (EpochEntry(1, 0),), 0)
    refused, _ = await world.tier.repair(held, apply=True, accepted=(OffsetRange(10, 20), OffsetRange(40, 50)))
    assert "offsets [10, 20)" in refused.refused and "40-50" not in refused.refused
    report, manifest = await world.tier.repair(held, apply=True, accepted=(OffsetRange(10, 20),))
    assert manifest is not None and manifest.end == 40
    assert "[10, 20) are given up" in report.summary and "[40, 60) are offloaded again" in report.summary
    assert (await world.extend(2)).end == 60


async def test_neighbours_are_one_loss(world: World) -> None:
    await lose(world, 6, 1, 2, 4)
    refused, _ = await world.tier.repair(NOTHING, apply=False)
    assert "[10, 30) and [40, 50)" in refused.refused
    _, manifest = await world.tier.repair(NOTHING, apply=True, accepted=(OffsetRange(40, 50), OffsetRange(10, 30)))
    assert manifest is not None
    assert [segment.records for segment in manifest.segments] == [10, 0, 0, 10, 0, 10]


async def test_a_lost_segment_behind_a_gap_is_accepted_and_the_gap_stays(world: World) -> None:
    """The gap's offsets were deleted before they could be offloaded."""
    await world.extend()
    saved = await world.tier.extend(world.local.job(20, 10, log_start=20))
    world.store.blocking().delete([saved.segments[-1].key])
    restore(world, None)
    _, manifest = await world.tier.repair(NOTHING, apply=True, accepted=(OffsetRange(20, 30),))
    assert manifest is not None and broken(manifest) is None
    assert [(segment.base, segment.end, segment.gap_from) for segment in manifest.segments] == [
        (0, 10, None),
        (20, 30, 10),
    ]


@pytest.mark.parametrize(
    ("epochs", "last", "expected"),
    [
        ([(1, 0)], None, [(10, 1)]),
        ([(1, 0), (4, 13), (5, 17), (9, 20)], 5, [(10, 1), (13, 4), (17, 5)]),
        ([(3, 15)], None, [(10, 3)]),
        ([], 7, [(10, 7)]),
        ([(1, 0)], 2, [(10, 2)]),
        ([(1, 0), (4, 13)], 2, [(10, 2)]),
    ],
)
def test_a_segment_without_records_keeps_offsets_and_epochs(
    epochs: list[tuple[int, int]], last: int | None, expected: list[tuple[int, int]]
) -> None:
    data, history = empty_segment(10, 20, [EpochEntry(*each) for each in epochs], last)
    found = [header for _, header in headers(data)]
    assert [(header.base_offset, header.leader_epoch) for header in found] == expected
    assert found[-1].base_offset + found[-1].last_offset_delta == 19
    assert last is None or history[-1].epoch == last
