"""A segment that lacks only its sidecar is whole: a repair makes a new index, or refuses, and never gives up the segment's
offsets."""

from __future__ import annotations

import errno
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from service.fsck.bucket import FsckScope, check_bucket
from service.fsck.findings import FindingKind
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment
from storage_tiers.cold.manifest.transitions import broken
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import StorageError
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import assign, read_header
from storage_tiers.records.builder import ControlKind, build_control_batch
from storage_tiers.types import AbortedTransaction, EpochEntry, OffsetRange
from tests.storage_tiers.cold.support import DAY, stored_live, stored_manifest
from tests.storage_tiers.cold.test_accepted_loss import NOTHING, records, world
from tests.storage_tiers.cold.test_repair import World, restore
from tests.storage_tiers.compaction.support import batch

__all__ = ["world"]


def live(world: World) -> list[RemoteSegment]:
    return stored_live(world.store.blocking(), stored_manifest(world.store.blocking()))


def state_of(world: World, segment: RemoteSegment) -> Sidecar:
    return sidecar.parse(world.store.blocking().get(segment.sidecar_key).data, segment.sidecar_key)


async def repaired(world: World, *damaged: str) -> Manifest:
    """Repairs the partition; asserts that fsck finds faults only in the `damaged` objects, which the manifest has removed."""
    _, manifest = await world.tier.repair(NOTHING, apply=True)
    assert manifest is not None and broken(manifest) is None
    report = check_bucket(world.store.blocking(), FsckScope(), now_ms=world.clock.unix_ms())
    # The test's store has no cluster.json and no topic.json.
    found = {each.key for each in report.findings if each.kind is not FindingKind.YOUNG_ORPHAN} - {*damaged}
    assert {key.rpartition("/")[2] for key in found} <= {"cluster.json", "topic.json"}
    return manifest


@pytest.mark.parametrize("place", [0, 3, 69], ids=["in a page", "further in the page", "the last"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
@pytest.mark.parametrize("manifest", ["sound", "lost"])
async def test_a_lost_index_is_made_from_its_segment(world: World, place: int, damage: str, manifest: str) -> None:
    await world.extend(70)
    before, blocking = live(world), world.store.blocking()
    hurt = before[place]
    kept = blocking.get(hurt.sidecar_key).data
    blocking.delete([hurt.sidecar_key])
    if damage == "cut":
        blocking.put(hurt.sidecar_key, kept[:-1])
    if manifest == "lost":
        restore(world, None)
    said, _ = await world.tier.repair(NOTHING, apply=False)
    assert f"offsets [{hurt.base}, {hurt.end}), whose segments lack only their .idx" in said.summary
    assert "given up" not in said.summary and "compaction" not in said.summary
    await repaired(world, hurt.sidecar_key)
    after = live(world)
    assert blocking.get(after[place].sidecar_key).data == kept
    assert after[place].crc32c == hurt.crc32c and after[place].key != hurt.key
    assert [offset for each in after for offset in records(world, each)] == list(range(700))
    assert await world.tier.repair(NOTHING, apply=True) == (RepairReport(), None)
    assert (await world.extend()).end == 710


async def test_offsets_of_an_intact_segment_are_not_given_up(world: World) -> None:
    await world.extend(3)
    hurt = live(world)[1]
    world.store.blocking().delete([hurt.sidecar_key])
    refused, manifest = await world.tier.repair(NOTHING, apply=True, accepted=(OffsetRange(10, 20),))
    assert manifest is None and "[10, 20) are not lost" in refused.refused


#: Transactions of three producers: (first offset, marker's offset). The first two are aborted.
TRANSACTIONS = {7: (4, 12), 8: (17, 22), 9: (13, 15)}
ABORTED = (AbortedTransaction(7, 4, 12, 13), AbortedTransaction(8, 17, 22, 23))


class Transactions:
    """A log of three segments of ten offsets each, with the transactions that overlap them, as a node would offload it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.state = ProducerStateManager()

    async def offload(self) -> None:
        for base in (0, 10, 20):
            data = b"".join(self._batch(offset) for offset in range(base, base + 10))
            self._world.local.snapshot = lambda end: self.state.state()
            job = self._world.local.job(base, 10, data=data)
            overlapping = [each for each in ABORTED if each.first_offset < base + 10 and each.last_offset >= base]
            await self._world.tier.extend(replace(job, aborted=tuple(overlapping)))

    def _batch(self, offset: int) -> bytes:
        producer = next((each for each, span in TRANSACTIONS.items() if offset in span), None)
        if producer is not None and offset == TRANSACTIONS[producer][1]:
            made = bytearray(self._marker(producer))
        elif producer is not None:
            made = bytearray(batch(("a", "1"), producer=(producer, 0, 0), transactional=True))
        else:
            made = bytearray(batch(("a", "1")))
        assign(made, base_offset=offset, leader_epoch=1)
        if producer is not None and offset == TRANSACTIONS[producer][1]:
            self.state.update_marker(read_header(made), offset, coordinator_epoch=1, aborted=True, now_ms=0)
        elif producer is not None:
            self.state.update(read_header(made), offset, now_ms=0)
        return bytes(made)

    def _marker(self, producer: int) -> bytes:
        kind = ControlKind.COMMIT if producer == 9 else ControlKind.ABORT
        return build_control_batch(kind, producer_id=producer, producer_epoch=0, coordinator_epoch=1, timestamp=0)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["begun here", "ended here, and begun here", "ended here"])
async def test_the_aborted_transactions_of_a_lost_index_are_found_again(world: World, place: int) -> None:
    await Transactions(world).offload()
    hurt = live(world)[place]
    before = state_of(world, hurt)
    world.store.blocking().delete([hurt.sidecar_key])
    await repaired(world)
    after = state_of(world, live(world)[place])
    assert after.aborted == before.aborted and after.aborted
    assert (after.epochs, after.producer_state) == (before.epochs, before.producer_state)


async def test_an_index_whose_aborted_transactions_nothing_shows_is_put_back(world: World) -> None:
    """A transaction that began in the segment was aborted in the next one, whose index is lost, too."""
    await Transactions(world).offload()
    blocking, (_, middle, last) = world.store.blocking(), live(world)
    kept = blocking.get(middle.sidecar_key).data
    blocking.delete([middle.sidecar_key, last.sidecar_key])
    for accepted in ((), (OffsetRange(10, 20),), (OffsetRange(10, 30),)):
        refused, manifest = await world.tier.repair(NOTHING, apply=True, accepted=accepted)
        assert manifest is None and refused.refused.startswith(middle.sidecar_key)
        assert f"the segment {middle.key} is intact" in refused.refused and "put the .idx back" in refused.refused
        assert "--accept-loss" not in refused.refused
    blocking.put(middle.sidecar_key, kept)
    await repaired(world)


async def test_leader_epochs_are_those_of_a_neighbour(world: World) -> None:
    """An epoch without records is in no batch of the segment: only a neighbour's sidecar shows it."""
    epochs = (EpochEntry(1, 0), EpochEntry(3, 5), EpochEntry(4, 12))
    for base, epoch in ((0, 3), (10, 4), (20, 4)):
        job: ExtendJob = world.local.job(base, 10, epoch=epoch)
        known = tuple(each for each in epochs if each.start_offset < base + 10)
        await world.tier.extend(replace(job, epochs=known))
    first = live(world)[0]
    world.store.blocking().delete([first.sidecar_key])
    _, manifest = await world.tier.repair(NOTHING, apply=True)
    assert manifest is not None
    assert state_of(world, live(world)[0]).epochs == epochs[:2]


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("manifest", ["sound", "lost"])
@pytest.mark.parametrize("damage", ["gone", "cut"])
async def test_the_state_of_the_end_is_written_again_where_all_records_expired(
    world: World, swept: bool, manifest: str, damage: str
) -> None:
    """A log that is rebuilt from the bucket begins with this state; without it the partition would never have a leader."""
    await world.extend(3)
    await world.tier.raise_log_start(30)
    saved = await world.tier.expire(30)
    if swept:
        world.clock.advance(3 * DAY / 1000)
        await world.tier.sweep(DAY)
        saved = stored_manifest(world.store.blocking())
    assert not saved.segments and saved.sidecar is not None and saved.sidecar.alone == swept
    blocking, lost = world.store.blocking(), saved.sidecar.key
    kept = blocking.get(lost).data
    blocking.delete([lost])
    if damage == "cut":
        blocking.put(lost, kept[:-1])
    if manifest == "lost":
        restore(world, None)
    said, _ = await world.tier.repair(NOTHING, apply=False)
    assert "the .idx of its end, whose records expired, is written again" in said.summary
    assert await repaired(world, lost) == stored_manifest(blocking)
    newest = stored_manifest(blocking).sidecar
    assert newest is not None and newest.alone and newest.key != lost
    state = sidecar.parse(blocking.get(newest.key).data, newest.key)
    assert (state.end, state.epochs) == (30, (EpochEntry(1, 0),))
    assert state.producer_state == ProducerStateManager().snapshot()
    assert await world.tier.repair(NOTHING, apply=True) == (RepairReport(), None)
    world.clock.advance(3 * DAY / 1000)
    await world.tier.sweep(DAY)
    assert (await world.extend()).end == 40


async def test_a_full_disk_of_temporary_files_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.extend(3)
    saved, hurt = stored_manifest(world.store.blocking()), live(world)[1]
    world.store.blocking().delete([hurt.sidecar_key])
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(path: Path, mode: str = "r") -> None:
        raise full

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"No space left on device.*TMPDIR") as caught:
        await world.tier.repair(NOTHING, apply=True)
    assert tempfile.gettempdir() in str(caught.value)
    assert stored_manifest(world.store.blocking()) == saved
