"""Advice from a refused repair, followed: the partition then shows everything that was committed, and continues."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.commit import SharedStore
from storage_tiers.cold.manifest.json import decode
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.process.operations import DeletePartition
from storage_tiers.cold.segments.partition_tier import PartitionTier
from tests.advice.support import configure, leads
from tests.service.broker.background.test_store_lineage import T0, grown, led, put_back
from tests.service.broker.support import Running, manifest_of, until
from tests.storage_tiers.cold.support import IDS, Local, stored_live, stored_manifest, tier_of
from tests.storage_tiers.cold.test_repair import HELD, NOTHING_HELD, World, _reads, restore, world

__all__ = ["world"]  # a fixture


async def refused(tier: PartitionTier, advised: str) -> str:
    """The refusal, which the dry run and the repair share; asserts that neither changes anything."""
    dry, _ = await tier.repair(NOTHING_HELD, apply=False)
    done, manifest = await tier.repair(NOTHING_HELD, apply=True)
    assert manifest is None and dry == done
    assert advised in done.refused
    return done.refused


async def shows(world: World, tier: PartitionTier, live: list[RemoteSegment]) -> None:
    """Asserts that the manifest names every committed segment, that their objects exist, and that the next extension begins at
    their end."""
    await tier.load()
    manifest = stored_manifest(world.store.blocking())
    assert stored_live(world.store.blocking(), manifest) == live
    for segment in live:
        assert len(world.store.blocking().get(segment.key).data) >= segment.length
    world.tier = tier
    assert (await world.extend()).end == live[-1].end + 10


async def test_the_newest_manifest_is_restored_where_none_was_seen_before(world: World) -> None:
    saved = await world.extend(3)
    before = stored_live(world.store.blocking(), saved)
    restore(world, None)
    fresh = tier_of(world.store, world.clock, seed=5)
    await refused(fresh, "Put the newest version of its manifest back")
    restore(world, saved)
    await shows(world, fresh, before)


async def test_a_newer_manifest_that_was_seen_is_restored(world: World) -> None:
    saved = await world.extend(5)
    before = stored_live(world.store.blocking(), saved)
    restore(world, None)
    fresh = tier_of(world.store, world.clock, seed=5, read_saved=_reads(world.manifests[1]))
    fresh.expect(lineage.seen_of(world.manifests[1], "here"))
    said = await refused(fresh, "there was a newer manifest")
    assert f"Put the newest version of {IDS.manifest_key} back" in said
    restore(world, saved)
    await shows(world, fresh, before)


async def test_the_chosen_one_of_two_histories_is_restored(world: World, tmp_path: Path) -> None:
    older, saved = await world.extend(), await world.extend()
    before = stored_live(world.store.blocking(), saved)
    other = World(tmp_path)
    other.store = world.store
    restore(world, older)
    other.tier = tier_of(world.store, world.clock, seed=9)
    await other.tier.load()
    await other.extend()
    said = await refused(world.tier, "If this node's history is the one to keep")
    assert f"put back the version of {IDS.manifest_key} from before that commit" in said
    restore(world, older)
    report, manifest = await world.tier.repair(NOTHING_HELD, apply=True)
    assert manifest is not None and not report.refused
    await shows(world, world.tier, before)


@pytest.mark.parametrize("what", ["page", "segment"])
async def test_objects_of_old_segments_that_are_missing_are_put_back(world: World, what: str) -> None:
    saved = await world.extend(80)
    before = stored_live(world.store.blocking(), saved)
    key = {"page": saved.live_pages[0].key, "segment": before[0].key}[what]
    kept = world.store.blocking().get(key).data
    restore(world, world.manifests[0])
    world.store.blocking().delete([key])
    fresh = tier_of(world.store, world.clock, seed=5, read_saved=_reads(saved))
    fresh.expect(lineage.seen_of(saved, "here"))
    said = await refused(fresh, "put it back" if what == "page" else "put the object back")
    assert key in said
    world.store.blocking().put(key, kept)
    assert (await fresh.repair(HELD, apply=True))[1] is not None
    await shows(world, fresh, before)


async def test_an_object_that_a_pin_keeps_is_put_back(world: World) -> None:
    await world.extend(3)
    saved = await world.tier.pin("audit")
    before = stored_live(world.store.blocking(), saved)
    key = saved.segments[1].key
    kept = world.store.blocking().get(key).data
    restore(world, None)
    world.store.blocking().delete([key])
    report, manifest = await world.tier.repair(HELD, apply=True)
    assert manifest is None and "the pin audit keeps the segment; put the object back" in report.refused
    world.store.blocking().put(key, kept)
    _, repaired = await world.tier.repair(HELD, apply=True)
    assert repaired is not None and [pin.name for pin in repaired.pins] == ["audit"]
    await shows(world, world.tier, before)


# --- through a node ---------------------------------------------------------------------------------------------------
async def deleted_in_the_bucket(node: Running) -> None:
    client, access = node.tier.client, node.tier.access
    assert client is not None and access is not None and access.writer is not None
    await client.ask(DeletePartition(led(node).ids, access.writer))
    await until(lambda: led(node) in node.node.work.tiering.lineage)


async def test_a_mistaken_deletion_is_undone_by_the_previous_version_of_the_manifest(tmp_path: Path) -> None:
    async with grown(tmp_path) as (node, versions):
        key, end = led(node).ids.manifest_key, led(node).log.hot.end_offset
        await deleted_in_the_bucket(node)
        said = await node.core.cold.repair(T0, apply=True)
        assert f"put back the version of {key} from before the deletion" in said.refused
        assert f"put back the version of {key} from before the deletion" in str(
            node.node.work.tiering.lineage.reason(led(node))
        )
        await put_back(node, key, versions[-1])
        await until(lambda: led(node) not in node.node.work.tiering.lineage)
        await node.append("t", b"z" * 1500)
        await node.seal("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(end + 1))


async def test_an_intended_deletion_of_a_manifest_is_followed_by_that_of_its_topic(tmp_path: Path) -> None:
    async with grown(tmp_path) as (node, _):
        key = led(node).ids.manifest_key
        await deleted_in_the_bucket(node)
        assert "Otherwise delete the topic" in str(node.node.work.tiering.lineage.reason(led(node)))
        said = await node.core.cold.repair(T0, apply=True)
        assert "Otherwise delete the topic and create it again" in said.refused
        await node.core.topics.delete(["t"])
        await node.create("t")
        await leads(node, "t")
        assert (await node.append("t", b"new")).base_offset == 0
        await node.seal("t")
        assert led(node).ids.manifest_key != key
        assert [record.value for record in await node.read_all("t")] == [b"new"]


async def test_records_that_a_repair_elsewhere_lacks_are_consumed_and_kept(tmp_path: Path) -> None:
    """No record is discarded before it is consumed."""
    async with grown(tmp_path / "data") as (node, versions):
        ids, manifest, access = led(node).ids, await manifest_of(led(node)), node.tier.access
        assert access is not None and access.writer is not None
        await configure(node, "t", {"remote.log.copy.disable": "true"})
        for number in range(3):
            await node.append("t", b"only here %d" % number)
        # Meanwhile an operator's tool repaired the partition, and another writer extended it.
        await put_back(node, ids.manifest_key, versions[0])
        other = PartitionTier(
            SharedStore.of_one(node.store, node.node.ground.host.clock, node.node.ground.host.rng),
            ids,
            access.writer,
            read_saved=_reads(manifest),
        )
        other.expect(lineage.seen_of(manifest, "there"))
        assert (await other.repair(NOTHING_HELD, apply=True))[1] is not None
        epoch = manifest.leader_epoch
        job = Local(tmp_path).job(manifest.end, 10, epoch=epoch, text="there")
        theirs = await other.extend(replace(job, epochs=led(node).log.hot.end.epochs.entries()))
        said = await node.core.cold.repair(T0, apply=True)
        assert "Consume these from this node and save them first; nothing was changed" in said.refused
        assert f"from offset {manifest.end} on" in said.refused
        kept = [record.value for record in await node.read_all("t", start=manifest.end)]
        assert kept == [b"only here 0", b"only here 1", b"only here 2"]
        assert decode((await node.store.get(ids.manifest_key)).data, ids) == theirs
