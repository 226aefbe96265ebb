"""A repair interrupted at any request loses nothing and starts no second history, and the next repair finishes the work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from service.fsck.findings import HARMLESS
from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.json import decode
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.segments.repairer import LocalEvidence
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import LogError, StoreBehind, TierObjectMissing
from storage_tiers.types import EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import IDS, Local, no_producers, stored_live, stored_manifest, tier_of
from tests.storage_tiers.cold.test_repair import World, _reads, restore
from tests.support.faulty_store import FaultyStore

EPOCHS = (EpochEntry(1, 0),)
NOTHING = LocalEvidence(OffsetRange(80, 80), EPOCHS, 0)


class Damaged:
    """A partition of eight segments, some in pages, that has lost its manifest and, depending on `kind`, a segment."""

    def __init__(self, world: World, saved: Manifest, kind: str) -> None:
        self.world, self.saved, self.kind = world, saved, kind
        self.segments = stored_live(world.store.blocking(), saved)
        self.local = NOTHING
        self.accepted: tuple[OffsetRange, ...] = ()
        lost: list[str] = []
        if kind == "the end is held locally":
            lost = [saved.segments[-1].key]
            self.local = LocalEvidence(OffsetRange(saved.segments[-1].base, 80), EPOCHS, 0)
        elif kind == "a range is given up":
            lost = [self.segments[1].key]
            self.accepted = (OffsetRange(10, 20),)
        world.store.blocking().delete(lost)
        restore(world, None)
        self.objects = {info.key: world.store.blocking().get(info.key).data for info in world.store.blocking().list("")}

    def again(self) -> MemoryStore:
        """A new store with the objects that remained after the damage."""
        store = MemoryStore(self.world.clock)
        for key, data in self.objects.items():
            store.blocking().put(key, data)
        return store

    def tier(self, store: MemoryStore | FaultyStore, seed: int) -> PartitionTier:
        """The tier of a process that knows only the manifest that the node saved."""
        made = tier_of(store, self.world.clock, seed=seed, read_saved=_reads(self.saved), attempts=2)
        made.expect(lineage.seen_of(self.saved, "here"))
        return made

    async def repaired(self, tier: PartitionTier) -> Manifest | None:
        report, manifest = await tier.repair(self.local, apply=True, accepted=self.accepted)
        assert report.refused == ""
        return manifest

    async def is_whole(self, store: MemoryStore, tier: PartitionTier) -> None:
        manifest = stored_manifest(store.blocking())
        assert broken(manifest) is None and manifest.commit > self.saved.commit and manifest.line != self.saved.line
        live = stored_live(store.blocking(), manifest)
        kept = {segment.base: segment for segment in live if segment.records}
        given_up = {each.base for each in self.accepted}
        again_from = self.local.held.base if self.kind == "the end is held locally" else 80
        assert manifest.end == again_from
        assert kept == {e.base: e for e in self.segments if e.base not in given_up and e.end <= again_from}
        assert manifest.log_start == self.saved.log_start
        while manifest.end < 90:
            manifest = await tier.extend(self.world.local.job(manifest.end, 10))
        findings = check_bucket(store.blocking(), FsckScope(), now_ms=self.world.clock.unix_ms()).findings
        # The test's store has no cluster.json and no topic.json.
        wrong = [each for each in findings if each.key.rpartition("/")[2] not in ("cluster.json", "topic.json")]
        # An interrupted offload may leave orphans, which a later sweep deletes.
        assert [each for each in wrong if each.kind not in HARMLESS] == []


@pytest.fixture(autouse=True)
def small_manifests() -> Iterator[None]:
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", MAX_SEGMENTS=4):
        yield


@pytest.mark.parametrize("kind", ["all is there", "the end is held locally", "a range is given up"])
@pytest.mark.parametrize("lost_answer", [False, True], ids=["not made", "answer lost"])
async def test_a_repair_that_is_cut_is_made_whole_by_the_next(tmp_path: Path, kind: str, lost_answer: bool) -> None:
    world = World(tmp_path)
    world.local = Local(tmp_path, snapshot=no_producers)
    damaged = Damaged(world, await world.extend(8), kind)
    assert damaged.saved.pages
    whole = FaultyStore(damaged.again())
    assert await damaged.repaired(damaged.tier(whole, 100)) is not None
    calls = len(whole.calls)
    struck = 0
    for cut in range(1, calls + 1):
        store = damaged.again()
        faulty = FaultyStore(store)
        (faulty.lose_answer if lost_answer else faulty.fail)(cut)
        try:
            await damaged.repaired(damaged.tier(faulty, 1000 + cut))
        except LogError:
            struck += 1
        before = shown_manifest(store)
        after = damaged.tier(store, 2000 + cut)
        # A node that starts before the next repair neither commits nor deletes.
        with pytest.raises(StoreBehind):
            await after.sweep(0)
        assert shown_manifest(store) == before
        manifest = await damaged.repaired(after)
        assert manifest is not None and manifest == shown_manifest(store)
        await damaged.is_whole(store, after)
    assert calls > 10 and struck > calls / 2


def shown_manifest(store: MemoryStore) -> Manifest | None:
    try:
        return decode(store.blocking().get(IDS.manifest_key).data, IDS)
    except TierObjectMissing:
        return None
