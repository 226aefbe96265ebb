"""An object's age is measured by the store's clock alone: a node's clock may be days off."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import TierUnavailable
from tests.storage_tiers.cold.support import DAY, IDS, EagerClock, Local, tier_of
from tests.support.faulty_store import FaultyStore


@pytest.mark.parametrize("off_days", [3, -3], ids=["the node is ahead", "the node is behind"])
async def test_the_grace_of_unreferenced_objects_follows_the_stores_clock(tmp_path: Path, off_days: int) -> None:
    """The objects are a segment that no manifest names and an unfinished upload."""
    stores_clock = EagerClock()
    memory = MemoryStore(stores_clock)
    store = FaultyStore(memory)
    nodes_clock = EagerClock(stores_clock.unix_ms() + off_days * DAY)
    tier, local = tier_of(store, nodes_clock), Local(tmp_path)
    await tier.extend(local.job(0, 10))
    store.fail(1, "put", ".log")
    with pytest.raises(TierUnavailable):
        await tier.extend(local.job(10, 10))
    memory.blocking().begin_upload(IDS.segment_key(20, 1, "a" * 32))

    def pass_time(milliseconds: int) -> None:
        for clock in (stores_clock, nodes_clock):
            clock.advance(milliseconds / 1000)

    pass_time(DAY - 60_000)
    await tier.extend(local.job(10, 10))  # a commit reads the store's current time
    report = await tier.sweep(DAY)
    assert (report.orphans, report.uploads_aborted, report.waiting) == (0, 0, 2)
    pass_time(120_000)
    await tier.extend(local.job(20, 10))
    report = await tier.sweep(DAY)
    assert (report.orphans, report.uploads_aborted, report.waiting) == (1, 1, 0)
