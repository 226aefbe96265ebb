"""A segment that a pin keeps lacks its sidecar: a repair writes the same sidecar again, so that the segment can be read at the
pin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.cold.manifest.lookup import state_at
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.hot.producer_state import ProducerStateManager
from tests.storage_tiers.cold.support import DAY, page_loader, stored_manifest
from tests.storage_tiers.cold.test_accepted_loss import NOTHING, world
from tests.storage_tiers.cold.test_lost_sidecar import Transactions, live
from tests.storage_tiers.cold.test_repair import World

__all__ = ["world"]


def pinned(world: World) -> list[RemoteSegment]:
    """The segments at the only pin."""
    manifest = stored_manifest(world.store.blocking())
    (pin,) = manifest.pins
    return state_at(manifest, page_loader(world.store.blocking()), pin.commit)


async def leave(world: World, how: str) -> None:
    """Keeps the first segments live, expires them or compacts them, as `how` says; then sweeps the unpinned objects of their
    age."""
    if how == "expired":
        await world.tier.raise_log_start(30)
        await world.tier.expire(30)
    if how == "compacted":
        await world.tier.replace(world.local.job(0, 30, text="less"), live(world)[:3])
    world.clock.advance(3 * DAY / 1000)
    await world.tier.sweep(DAY)


def is_sound(world: World) -> bool:
    """True if fsck finds faults only in cluster.json and topic.json, which the test's store lacks."""
    report = check_bucket(world.store.blocking(), FsckScope(), now_ms=world.clock.unix_ms())
    return {each.key.rpartition("/")[2] for each in report.findings} <= {"cluster.json", "topic.json"}


@pytest.mark.parametrize("how", ["live", "expired", "compacted"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
@pytest.mark.parametrize("lost", [[1], [0, 1, 2], [3]])
async def test_a_lost_index_of_a_pinned_segment_is_written_again(
    world: World, how: str, damage: str, lost: list[int]
) -> None:
    await world.extend(4)
    await world.tier.pin("audit")
    await leave(world, how)
    blocking, segments = world.store.blocking(), pinned(world)
    kept = {segments[nth].sidecar_key: blocking.get(segments[nth].sidecar_key).data for nth in lost}
    for key, data in kept.items():
        blocking.delete([key])
        if damage == "cut":
            blocking.put(key, data[:-1])
    assert not is_sound(world)
    said, _ = await world.tier.repair(NOTHING, apply=False)
    assert said.summary.count(", which the pin audit keeps, is written again") == len(lost)
    assert not is_sound(world)
    await world.tier.repair(NOTHING, apply=True)
    assert pinned(world) == segments
    assert {key: blocking.get(key).data for key in kept} == kept
    assert is_sound(world)
    assert await world.tier.repair(NOTHING, apply=True) == (RepairReport(), None)


@pytest.mark.parametrize("remedy", ["put back", "unpinned"])
async def test_no_other_index_is_written_in_place_of_a_pinned_one(world: World, remedy: str) -> None:
    """The producers expired before the segment was closed, so its lost sidecar had none; a neighbour's sidecar still shows
    them."""
    transactions = Transactions(world)
    await transactions.offload()
    transactions.state = ProducerStateManager()
    for base in (30, 40):
        await world.tier.extend(world.local.job(base, 10))
    await world.tier.pin("audit")
    await world.tier.raise_log_start(40)
    await world.tier.expire(40)
    hurt = pinned(world)[3]
    kept = world.store.blocking().get(hurt.sidecar_key).data
    world.store.blocking().delete([hurt.sidecar_key])
    for apply in (False, True):
        report, made = await world.tier.repair(replace(NOTHING, log_start=40), apply=apply)
        assert made is None and not report.summary
        assert report.refused.startswith(f"{hurt.sidecar_key} is missing")
        assert "at the pin audit offsets [30, 40) cannot be read" in report.refused
        assert "put it back, or remove the pin" in report.refused
    assert hurt.sidecar_key not in {each.key for each in world.store.blocking().list("")}
    if remedy == "unpinned":
        await world.tier.unpin("audit")
    else:
        world.store.blocking().put(hurt.sidecar_key, kept)
    assert await world.tier.repair(replace(NOTHING, log_start=40), apply=True) == (RepairReport(), None)
