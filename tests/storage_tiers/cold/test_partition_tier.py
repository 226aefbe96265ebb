"""A partition's tier over a store: extended, shortened, swept, fenced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.keys import topic_file_key
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import MULTIPART_THRESHOLD
from storage_tiers.errors import CorruptRecord, DeletedInStore, FencedWriter, InvalidRequest, TierUnavailable
from storage_tiers.records.builder import NewRecord, build_batch
from tests.storage_tiers.cold.support import DAY, IDS, EagerClock, Local, stored_live, stored_manifest, tier_of
from tests.support.faulty_store import FaultyStore


@pytest.fixture
def clock() -> EagerClock:
    return EagerClock()


@pytest.fixture
def memory(clock: EagerClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def store(memory: MemoryStore) -> FaultyStore:
    return FaultyStore(memory)


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


async def test_an_extension_offloads_a_segment_before_naming_it(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    job = local.job(0, 10, text="a")
    manifest = await tier.extend(job)
    assert (manifest.end, manifest.commit, manifest.leader_epoch, manifest.incarnation) == (10, 1, 1, 1)
    assert stored_manifest(memory.blocking()) == manifest == tier.manifest
    (segment,) = manifest.segments
    assert memory.blocking().get(segment.key).data == Path(job.path).read_bytes()
    side = sidecar.parse(memory.blocking().get(segment.sidecar_key).data)
    assert side.producer_state == b"producers@10"
    assert side.epochs == job.epochs
    assert segment.records == 10


async def test_a_segment_costs_two_puts_and_a_commit(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    for base in range(0, 50, 10):
        await tier.extend(local.job(base, 10))
    assert store.count("put", "/segments/") == 2 * 5
    assert store.count("put", "/manifests/") == 5
    assert store.count("put") == 3 * 5
    assert store.count("get") == 2, "the manifest is read until it exists, then never"
    assert store.count("head") == 0


async def test_an_extension_begins_at_the_end(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    puts = store.count("put")
    manifest = await tier.extend(local.job(20, 10))
    assert manifest.end == 10
    assert store.count("put") == puts, "nothing is offloaded that cannot be referenced"


async def test_another_writer_moved_the_end(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    first, second = tier_of(store, clock), tier_of(store, clock, seed=2)
    await first.load()
    await second.extend(local.job(0, 10))
    manifest = await first.extend(local.job(0, 7))
    assert manifest.end == 10, "the loser learns where its next extension begins"
    assert (await first.extend(local.job(10, 5))).end == 15


async def test_a_gap_is_recorded_only_below_log_start(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    assert (await tier.extend(local.job(20, 10, log_start=19))).end == 10
    manifest = await tier.extend(local.job(20, 10, log_start=23))
    assert (manifest.end, manifest.log_start) == (30, 23)
    assert manifest.segments[-1].gap_from == 10
    manifest = await tier.expire(manifest.log_start)
    assert [segment.base for segment in stored_live(memory.blocking(), manifest)] == [20]
    assert (await tier.extend(local.job(30, 1))).log_start == 23, "log start never falls"


async def test_the_first_extension_may_begin_anywhere(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    manifest = await tier.extend(local.job(5000, 10, log_start=5003))
    assert (manifest.log_start, manifest.end, manifest.segments[0].gap_from) == (5003, 5010, 0)


async def test_lower_epochs_and_incarnations_are_fenced(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    old, new = tier_of(store, clock), tier_of(store, clock, seed=2)
    await old.extend(local.job(0, 10))
    await new.load()
    await new.claim(2)
    with pytest.raises(FencedWriter, match="leader epoch 2, not 1"):
        await old.extend(local.job(10, 10, epoch=1))
    copy = tier_of(store, clock, incarnation=2, seed=3)
    await copy.claim(2)
    for act in (new.extend(local.job(10, 1, epoch=2)), new.pin("a"), new.raise_log_start(5), new.delete_partition()):
        with pytest.raises(FencedWriter, match="a copy of its directory has run"):
            await act


async def test_a_maintainer_keeps_the_incarnation(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    await tier_of(store, clock, incarnation=7).extend(local.job(0, 10))
    maintainer = tier_of(store, clock, node=-1, incarnation=None, seed=2)
    manifest = await maintainer.expire(10)
    assert (manifest.incarnation, manifest.log_start, manifest.end, manifest.leader_epoch) == (7, 10, 10, 1)


async def test_a_claim_is_one_commit_per_epoch(store: FaultyStore, clock: EagerClock) -> None:
    tier = tier_of(store, clock)
    assert (await tier.claim(4)).commit == 1
    assert (await tier.claim(4)).commit == 1
    with pytest.raises(FencedWriter):
        await tier.claim(3)


@pytest.mark.parametrize("lost", [True, False])
async def test_lost_answers_are_recognised(
    lost: bool, store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    if lost:
        store.lose_answer(1, "put", "/manifests/")
    else:
        store.fail(1, "put", "/manifests/")
    manifest = await tier.extend(local.job(10, 10))
    assert (manifest.commit, manifest.end) == (2, 20), "one commit either way"
    assert stored_manifest(memory.blocking()) == manifest


async def test_our_commit_among_the_recent_ones_is_success_even_below_others(
    store: FaultyStore, clock: EagerClock, local: Local
) -> None:
    tier, other = tier_of(store, clock), tier_of(store, clock, seed=2, incarnation=2)
    await tier.extend(local.job(0, 10))
    gate = store.hold(1, "put", "/manifests/", after=True)
    store.lose_answer(1, "put", "/manifests/")
    extension = asyncio.create_task(tier.extend(local.job(10, 10)))
    await gate.reached.wait()
    for _ in range(15):
        await other.pin("p")
        await other.unpin("p")
    await other.delete_partition()
    gate.open()
    manifest = await extension
    assert manifest.state is State.DELETED
    assert manifest.end == 20


async def test_attempts_are_bounded(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock, attempts=3)
    for call in range(1, 4):
        store.fail(call, "put", "/manifests/")
    with pytest.raises(TierUnavailable, match="3 attempts"):
        await tier.extend(local.job(0, 10))
    assert tier.manifest is None
    assert (await tier.extend(local.job(0, 10))).end == 10


async def test_a_large_segment_is_uploaded_in_parts(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    value = bytes(1 << 20)
    data = b"".join(
        build_batch([NewRecord(None, value, timestamp=1)], base_offset=offset, leader_epoch=1)
        for offset in range((MULTIPART_THRESHOLD >> 20) + 1)
    )
    assert len(data) > MULTIPART_THRESHOLD
    manifest = await tier_of(store, clock).extend(local.job(0, 17, data=data))
    assert memory.blocking().head(manifest.segments[0].key).size == len(data)
    side = sidecar.parse(memory.blocking().get(manifest.segments[0].sidecar_key).data)
    assert len(side.mib_crcs) == 18 and len(side.index) == 17


async def test_impossible_segments_are_refused(store: FaultyStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    job = local.job(0, 10)
    with pytest.raises(CorruptRecord):
        await tier.extend(replace(job, length=job.length - 1))
    with pytest.raises(CorruptRecord, match="outside"):
        await tier.extend(replace(job, end=9))
    with pytest.raises(InvalidRequest, match="leader epoch"):
        await tier.extend(replace(job, last_record_epoch=0))
    assert store.count("put") == 0


async def test_deletion_is_terminal(store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local) -> None:
    tier, zombie = tier_of(store, clock), tier_of(store, clock, seed=2)
    await tier.extend(local.job(0, 10))
    await tier.pin("kept")
    await zombie.load()
    manifest = await tier.delete_partition()
    assert (manifest.state, manifest.end, manifest.segments) == (State.DELETED, 10, ())
    assert (await tier.delete_partition()).commit == manifest.commit
    for act in (zombie.extend(local.job(10, 10)), zombie.claim(9), zombie.raise_log_start(5), zombie.pin("x")):
        with pytest.raises(FencedWriter, match="deleted"):
            await act
    assert not (await tier.sweep_deleted(DAY)).done
    clock.advance(DAY / 1000)
    assert (await tier.sweep_deleted(DAY)).done
    assert [info.key for info in memory.blocking().list("")] == [IDS.manifest_key], (
        "the fenced writer's objects are gone too"
    )


async def test_a_deletion_creates_a_missing_manifest(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    late = tier_of(store, clock, seed=2)
    gate = store.hold(1, "put", "/manifests/")
    extension = asyncio.create_task(late.extend(local.job(0, 10)))
    await gate.reached.wait()
    await tier_of(store, clock).delete_partition()
    gate.open()
    with pytest.raises(FencedWriter):
        await extension
    assert [info.key for info in memory.blocking().list("")] == [IDS.manifest_key]


async def test_only_objects_past_the_grace_are_swept(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    for base in range(0, 30, 10):
        await tier.extend(local.job(base, 10))
    await tier.expire(25)
    assert (await tier.sweep(DAY)).removed == 0
    clock.advance(DAY / 1000)
    report = await tier.sweep(DAY)
    assert report.removed == 4
    manifest = stored_manifest(memory.blocking())
    assert manifest.removed == () and manifest.swept == 4
    kept = {info.key for info in memory.blocking().list("")}
    assert kept == {IDS.manifest_key, manifest.segments[0].key, manifest.segments[0].sidecar_key}
    commits = manifest.commit
    await tier.sweep(DAY)
    assert stored_manifest(memory.blocking()).commit == commits, "a sweep without work commits nothing"


async def test_the_newest_sidecar_outlives_its_segment(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    manifest = await tier.extend(local.job(0, 10))
    sidecar_key = manifest.segments[0].sidecar_key
    await tier.expire(10)
    clock.advance(DAY / 1000)
    await tier.sweep(DAY)
    kept = [info.key for info in memory.blocking().list(IDS.segments_prefix)]
    assert kept == [sidecar_key], "epochs and producers at the end are still needed"
    manifest = await tier.extend(local.job(10, 10))
    assert [item.keys for item in manifest.removed] == [(sidecar_key,)]
    clock.advance(DAY / 1000)
    await tier.sweep(DAY)
    assert sidecar_key not in [info.key for info in memory.blocking().list(IDS.segments_prefix)]


async def test_pins_hold_the_segments_live_at_their_commit(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    await tier.pin("report")
    await tier.extend(local.job(10, 10))
    manifest = await tier.expire(20)
    held = manifest.removed[0]
    clock.advance(2 * DAY / 1000)
    await tier.sweep(DAY)
    manifest = stored_manifest(memory.blocking())
    assert manifest.removed == (held,)
    assert memory.blocking().head(held.keys[0]).size > 0
    await tier.unpin("report")
    await tier.sweep(DAY)
    assert stored_manifest(memory.blocking()).removed == ()


async def test_orphans_are_tombstoned_before_they_are_deleted(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock, local: Local
) -> None:
    tier = tier_of(store, clock)
    await tier.claim(1)
    store.fail(1, "put", ".log")
    with pytest.raises(TierUnavailable):
        await tier.extend(local.job(0, 10))
    (orphan,) = [info.key for info in memory.blocking().list(IDS.segments_prefix)]
    clock.advance(DAY / 1000 - 1)
    report = await tier.sweep(DAY)
    assert (report.orphans, report.waiting) == (0, 1)
    clock.advance(1)
    store.fail(1, "delete")
    with pytest.raises(TierUnavailable):
        await tier.sweep(DAY)
    assert [item.key for item in stored_manifest(memory.blocking()).tombstoned] == [orphan]
    assert memory.blocking().head(orphan).size > 0
    await tier.sweep(DAY)
    assert stored_manifest(memory.blocking()).tombstoned == ()
    assert [info.key for info in memory.blocking().list("")] == [IDS.manifest_key]


async def test_more_orphans_than_one_commit_may_tombstone_are_all_swept(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock
) -> None:
    keys = [IDS.segment_key(base, 1, f"{base:032x}") for base in range(150)]
    for key in keys:
        memory.blocking().put(key, b"x")
    tier = tier_of(store, clock)
    await tier.claim(1)
    clock.advance(DAY / 1000)
    report = await tier.sweep(DAY)
    assert report.orphans == 150
    assert [info.key for info in memory.blocking().list("")] == [IDS.manifest_key]


async def test_abandoned_uploads_are_aborted(store: FaultyStore, memory: MemoryStore, clock: EagerClock) -> None:
    memory.blocking().begin_upload(IDS.segment_key(0, 1, "0" * 32))
    tier = tier_of(store, clock)
    await tier.claim(1)
    assert (await tier.sweep(DAY)).uploads_aborted == 0
    clock.advance(DAY / 1000)
    assert (await tier.sweep(DAY)).uploads_aborted == 1
    assert list(memory.blocking().unfinished_uploads("")) == []


async def test_commits_that_were_cut_off_leave_nothing(
    store: FaultyStore, memory: MemoryStore, clock: EagerClock
) -> None:
    """A directory store lists a dead writer's interrupted commit as an unfinished upload."""
    ids = replace(IDS, partition=0)
    tier = tier_of(store, clock, ids=ids)
    topic_file = topic_file_key(ids.cluster_id, ids.topic)
    for key in (ids.manifest_key, topic_file):
        memory.blocking().begin_upload(key)
    await tier.claim(1)
    assert (await tier.sweep(DAY)).uploads_aborted == 0
    clock.advance(DAY / 1000)
    assert (await tier.sweep(DAY)).uploads_aborted == 2
    for key in (ids.manifest_key, topic_file):
        memory.blocking().begin_upload(key)
    await tier.delete_partition()
    clock.advance(DAY / 1000)
    with pytest.raises(DeletedInStore):
        await tier.sweep(DAY)
    report = await tier.sweep_deleted(DAY)
    assert (report.uploads_aborted, report.done) == (1, True)
    assert [upload.key for upload in memory.blocking().unfinished_uploads("")] == [
        topic_file
    ]  # the upload may belong to the next topic of that name
