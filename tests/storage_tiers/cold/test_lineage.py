"""A store that goes backwards: what it shows no more is neither swept nor overwritten (I10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import StoreBehind
from tests.storage_tiers.cold.support import DAY, IDS, EagerClock, Local, tier_of

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


def put_back(store: MemoryStore, root: bytes | None) -> None:
    """The manifest as it was before; None: it is gone."""
    if root is None:
        store.blocking().delete([IDS.manifest_key])
    else:
        store.blocking().put(IDS.manifest_key, root)


async def test_nothing_is_swept_without_a_root(store: MemoryStore, clock: EagerClock, local: Local) -> None:
    """By a process that has seen none, as by one that has."""
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


async def test_nothing_is_swept_by_an_older_root(store: MemoryStore, clock: EagerClock, local: Local) -> None:
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


@pytest.mark.parametrize("vanished", [True, False])
async def test_nothing_is_committed_on_less_than_was_seen(
    vanished: bool, store: MemoryStore, clock: EagerClock, local: Local
) -> None:
    """No first root where there was one, and no commit on top of an older one."""
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
        lambda: tier.retire(10),
        lambda: tier.pin("a"),
        lambda: tier.load(),
    ):
        with pytest.raises(StoreBehind):
            await act()
    assert stored(store)[IDS.manifest_key] == before[IDS.manifest_key] if not vanished else True
    assert (IDS.manifest_key in stored(store)) is not vanished


async def test_a_deletion_needs_no_root(store: MemoryStore, clock: EagerClock, local: Local) -> None:
    tier = tier_of(store, clock)
    await tier.extend(local.job(0, 10))
    put_back(store, None)
    await tier.delete_partition()
    clock.advance(3 * GRACE / 1000)
    assert (await tier.sweep_deleted(GRACE)).done
    assert list(stored(store)) == [IDS.manifest_key]
