"""The memory store beyond the conformance suite: unfinished uploads, and its two interfaces."""

from __future__ import annotations

import asyncio

import pytest

from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import MULTIPART_THRESHOLD
from storage_tiers.errors import TierUnavailable
from tests.support.clock import ManualClock

IN_PARTS = bytes(MULTIPART_THRESHOLD + 1)


async def started_upload(store: MemoryStore) -> asyncio.Task[object]:
    writing: asyncio.Task[object] = asyncio.create_task(store.put("key", IN_PARTS))
    while not list(store.blocking().unfinished_uploads("")):
        await asyncio.sleep(0)
    return writing


async def test_an_upload_in_progress_is_listed_and_is_not_an_object() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    writing = await started_upload(store)
    (upload,) = [upload async for upload in store.unfinished_uploads("")]
    assert (upload.key, upload.started_ms) == ("key", clock.unix_ms())
    assert [info async for info in store.list("")] == []
    await writing
    assert (await store.head("key")).size == len(IN_PARTS)
    assert [upload async for upload in store.unfinished_uploads("")] == []


async def test_an_aborted_upload_fails_and_leaves_nothing() -> None:
    store = MemoryStore(ManualClock())
    writing = await started_upload(store)
    for upload in store.blocking().unfinished_uploads(""):
        await store.abort_upload(upload)
    with pytest.raises(TierUnavailable, match="again"):
        await writing
    assert [info async for info in store.list("")] == []


async def test_a_cancelled_upload_leaves_nothing() -> None:
    store = MemoryStore(ManualClock())
    writing = await started_upload(store)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert [upload async for upload in store.unfinished_uploads("")] == []
    assert [info async for info in store.list("")] == []


async def test_a_listing_shows_keys_created_ahead_of_it_and_no_deleted_ones() -> None:
    store = MemoryStore(ManualClock())
    for key in ("a", "c", "e"):
        await store.put(key, b"")
    seen = []
    for info in store.blocking().list(""):
        seen.append(info.key)
        if info.key == "a":
            store.blocking().delete(["a", "e"])
            store.blocking().put("b", b"")
    assert seen == ["a", "b", "c"]


async def test_both_interfaces_show_the_same_objects() -> None:
    store = MemoryStore(ManualClock())
    await store.put("a/1", b"one")
    store.blocking().put("a/2", b"two")
    assert [info.key async for info in store.list("a/")] == ["a/1", "a/2"]
    assert store.blocking().get("a/1").data == b"one"
    await store.close()
    assert store.blocking().get("a/1").data == b"one"
