"""The fault injector itself: which call a rule hits, before or after its effect."""

from __future__ import annotations

import asyncio

import pytest

from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import StoreRefused, TierUnavailable
from tests.support.clock import ManualClock
from tests.support.faulty_store import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(ManualClock()))


async def test_the_chosen_call_fails_before_its_effect(store: FaultyStore) -> None:
    store.fail(2, "put", "a/", error=StoreRefused("no"))
    await store.put("a/1", b"")
    await store.put("b/1", b"")
    with pytest.raises(StoreRefused):
        await store.put("a/2", b"")
    await store.put("a/2", b"")
    assert store.count("put", "a/") == 3 and store.count("put") == 4


async def test_a_lost_answer_leaves_the_effect(store: FaultyStore) -> None:
    store.lose_answer(1, "put")
    with pytest.raises(TierUnavailable):
        await store.put("key", b"x")
    assert (await store.get("key")).data == b"x"


async def test_a_held_call_waits(store: FaultyStore) -> None:
    gate = store.hold(1, "put")
    writing = asyncio.create_task(store.put("key", b"x"))
    await gate.reached.wait()
    assert [info async for info in store.list("")] == []
    gate.open()
    await writing
    assert [info.key async for info in store.list("")] == ["key"]


async def test_a_store_that_is_down(store: FaultyStore) -> None:
    await store.put("key", b"x")
    store.down = True
    with pytest.raises(TierUnavailable):
        await store.get("key")
    store.down = False
    assert (await store.get("key")).data == b"x"
