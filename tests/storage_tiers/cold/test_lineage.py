"""A store that goes backwards: state that it no longer shows is neither swept nor overwritten (I10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.lineage import MAX_COMMITS, SeenManifest, seen_of
from storage_tiers.cold.manifest.model import MAX_TOMBSTONED, RECENT_COMMITS, CommitId, Manifest
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import FencedWriter, StoreBehind
from tests.storage_tiers.cold.support import DAY, IDS, EagerClock, Local, tier_of
from tests.support.faulty_store import FaultyStore

GRACE = DAY


@pytest.fixture
def clock() -> EagerClock:
    return EagerClock()


@pytest.fixture
def store(clock: EagerClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path)


def stored(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.blocking().get(info.key).data for info in store.blocking().list("")}


def put_back(store: MemoryStore, manifest: bytes | None) -> None:
    """Restores an earlier manifest, or deletes it (None)."""
    if manifest is None:
        store.blocking().delete([IDS.manifest_key])
    else:
        store.blocking().put(IDS.manifest_key, manifest)


async def test_nothing_is_swept_without_a_manifest(store: MemoryStore, clock: EagerClock, local: Local) -> None:
    """A sweep deletes nothing, whether or not its process has seen a manifest."""
    first = tier_of(store, clock)
    for base in (0, 10):
        await first.extend(local.job(base, 10))
    put_back(store, None)
    before = stored(store)
    clock.advance(3 * GRACE / 1000)
    report = await tier_of(store, clock, seed=2).sweep(GRACE)
    assert (report.orphans, report.removed, report.uploads_aborted) == (0, 0, 0)
    with pytest.raises(StoreBehind, match="no manifest"):
        await first.sweep(GRACE)
    assert stored(store) == before


async def test_nothing_is_swept_by_an_older_manifest(store: MemoryStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    yesterday = stored(store)[IDS.manifest_key]
    await tier.extend(local.job(10, 10))
    today = stored(store)[IDS.manifest_key]
    put_back(store, yesterday)
    before = stored(store)
    clock.advance(3 * GRACE / 1000)
    with pytest.raises(StoreBehind, match=r"commit 1, .* commit 2, "):
        await tier.sweep(GRACE)
    assert stored(store) == before
    put_back(store, today)
    assert (await tier.extend(local.job(20, 10))).end == 30


async def test_a_successor_that_claimed_an_older_manifest_fences_the_writer_of_the_newer_one(
    store: MemoryStore, clock: EagerClock, local: Local
) -> None:
    """The bucket was restored to yesterday's state and the cluster taken over there: the newest version will never return."""
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    yesterday = stored(store)[IDS.manifest_key]
    for base in (10, 20):
        await tier.extend(local.job(base, 10))
    put_back(store, yesterday)
    with pytest.raises(StoreBehind):
        await tier.load()
    await tier_of(store, clock, incarnation=2, seed=2).claim(9)
    for act in (tier.load, lambda: tier.extend(local.job(30, 10)), lambda: tier.sweep(GRACE)):
        with pytest.raises(FencedWriter, match="the cluster was taken over"):
            await act()


async def test_an_older_digest_that_comes_late_does_not_take_the_newer_ones_place(
    store: MemoryStore, clock: EagerClock, local: Local, tmp_path: Path
) -> None:
    """Queued requests carry the digest from the time they were made."""
    first, digests, manifests = tier_of(store, clock), list[SeenManifest](), list[bytes]()
    for base in (0, 10, 20):
        await first.extend(local.job(base, 10))
        digests.append(await saved(first, tmp_path))
        manifests.append(stored(store)[IDS.manifest_key])
    put_back(store, manifests[1])
    again = tier_of(store, clock, seed=2)
    again.expect(digests[2])
    again.expect(digests[0])
    with pytest.raises(StoreBehind, match=r"commit 2, .* commit 3, "):
        await again.load()


@pytest.mark.parametrize("vanished", [True, False])
async def test_nothing_is_committed_on_less_than_was_seen(
    vanished: bool, store: MemoryStore, clock: EagerClock, local: Local
) -> None:
    """The tier writes neither a first manifest where one existed, nor a commit on top of an older manifest."""
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    yesterday = stored(store)[IDS.manifest_key]
    await tier.extend(local.job(10, 10))
    put_back(store, None if vanished else yesterday)
    before = stored(store)
    for act in (
        lambda: tier.extend(local.job(20, 10)),
        lambda: tier.extend(local.job(0, 5)),
        lambda: tier.claim(5),
        lambda: tier.raise_log_start(3),
        lambda: tier.expire(10),
        lambda: tier.pin("a"),
        lambda: tier.load(),
    ):
        with pytest.raises(StoreBehind):
            await act()
    assert stored(store)[IDS.manifest_key] == before[IDS.manifest_key] if not vanished else True
    assert (IDS.manifest_key in stored(store)) is not vanished


async def test_a_deletion_needs_no_manifest(store: MemoryStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    put_back(store, None)
    await tier.delete_partition()
    clock.advance(3 * GRACE / 1000)
    assert (await tier.sweep_deleted(GRACE)).done
    assert list(stored(store)) == [IDS.manifest_key]


# --- the limits of a digest -------------------------------------------------------------------------------------------
async def saved(tier: PartitionTier, directory: Path) -> SeenManifest:
    """Saves the last manifest seen to a file, as a broker does."""
    loaded = await tier.load()
    assert loaded is not None
    path = directory / "tiered-manifest.json"
    path.write_bytes(encode(loaded.manifest))
    seen = seen_of(loaded.manifest, str(path))
    assert seen is not None
    return seen


async def many_commits(tier: PartitionTier, count: int = RECENT_COMMITS + 3) -> None:
    loaded = await tier.load()
    assert loaded is not None
    for epoch in range(count):
        await tier.claim(loaded.manifest.leader_epoch + epoch + 1)


@pytest.mark.parametrize("segments", [64, 2], ids=["in the manifest", "in pages"])
@pytest.mark.parametrize("swept", [True, False], ids=["some forgotten", "nothing forgotten"])
async def test_a_manifest_that_is_ahead_by_more_commits_than_it_remembers_is_accepted(
    store: MemoryStore, clock: EagerClock, local: Local, tmp_path: Path, segments: int, swept: bool
) -> None:
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", MAX_SEGMENTS=segments):
        first = tier_of(store, clock)
        for base in range(0, 80, 10):
            await first.extend(local.job(base, 10))
        seen = await saved(first, tmp_path)
        other = tier_of(store, clock, seed=2)
        await other.expire(25)
        if swept:
            clock.advance(3 * GRACE / 1000)
            await other.sweep(GRACE)
        await other.expire(45)
        await many_commits(other)
        again = tier_of(store, clock, seed=3)
        again.expect(seen)
        loaded = await again.load()
    assert loaded is not None and lineage.beyond_recent(loaded.manifest, seen)
    assert loaded.manifest.log_start == 45
    assert (loaded.manifest.swept > seen.commit) is swept and bool(loaded.manifest.removed_pages) is (segments == 2)


@pytest.mark.parametrize("segments", [64, 2], ids=["in the manifest", "in pages"])
async def test_a_second_history_of_more_commits_than_a_manifest_remembers_is_refused(
    store: MemoryStore, clock: EagerClock, local: Local, tmp_path: Path, segments: int
) -> None:
    """The bucket is restored, and a process without a digest commits other records, up to and past the same end."""
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", MAX_SEGMENTS=segments):
        first = tier_of(store, clock)
        await first.extend(local.job(0, 10))
        yesterday = stored(store)[IDS.manifest_key]
        for base in range(10, 80, 10):
            await first.extend(local.job(base, 10))
        seen = await saved(first, tmp_path)
        put_back(store, yesterday)
        other = tier_of(store, clock, seed=2)
        for base in range(10, 90, 10):
            await other.extend(local.job(base, 10, text="other"))
        await many_commits(other)
        again = tier_of(store, clock, seed=3)
        again.expect(seen)
        with pytest.raises(StoreBehind, match="neither live nor removed"):
            await again.load()


def test_each_field_that_never_falls_is_compared() -> None:
    commits = tuple(CommitId(number, f"{number:032x}") for number in range(69, 101))
    manifest = Manifest(
        IDS, line="l", commit=100, recent=commits, incarnation=5, leader_epoch=5, log_start=5, end=50, swept=5
    )
    seen = SeenManifest("l", 3, "3", 5, 5, 5, 50, 5)
    assert lineage.fault(manifest, seen) is None and lineage.beyond_recent(manifest, seen)
    for name in ("incarnation", "leader_epoch", "log_start", "end", "swept"):
        fault = lineage.fault(replace(manifest, **{name: getattr(manifest, name) - 1}), seen)
        assert fault is not None and name in fault
    assert lineage.fault(manifest, replace(seen, line="m")) is not None
    assert lineage.fault(manifest, replace(seen, commit=100, commit_id="another")) is not None
    assert lineage.fault(manifest, replace(seen, commit=101)) is not None
    assert lineage.fault(None, seen) is not None


# --- no false alarm ---------------------------------------------------------------------------------------------------
async def test_a_question_that_is_cut_at_any_of_its_commits_raises_no_alarm(clock: EagerClock, tmp_path: Path) -> None:
    """The caller dies before it saves the new manifest: the digest that it saved before is still among the manifest's commit
    ids."""
    commits = 0
    for cut in range(1, MAX_COMMITS + 2):
        memory = MemoryStore(clock)
        first = tier_of(memory, clock)
        await first.claim(1)
        for number in range(MAX_TOMBSTONED * MAX_COMMITS):
            memory.blocking().put(IDS.segment_key(number, 1, f"{number:032x}"), b"x")
        seen = await saved(first, tmp_path)
        clock.advance(3 * GRACE / 1000)
        faulty = FaultyStore(memory)
        gate = faulty.hold(cut, "put", "/manifests/", after=True)
        sweeping = asyncio.create_task(tier_of(faulty, clock, seed=2).sweep(GRACE))
        reached = asyncio.create_task(gate.reached.wait())
        await asyncio.wait((sweeping, reached), return_when=asyncio.FIRST_COMPLETED)
        if sweeping.done():
            reached.cancel()
            assert sweeping.result().cut_short
            break
        commits = cut
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        again = tier_of(memory, clock, seed=3)
        again.expect(seen)
        loaded = await again.load()
        assert loaded is not None and not lineage.beyond_recent(loaded.manifest, seen)
        assert loaded.manifest.commit == seen.commit + cut
    assert 2 < commits <= MAX_COMMITS
