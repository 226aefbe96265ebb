"""Tests at a node's start whether the store honours conditional writes, on which all manifest commits depend.

A store that ignores conditions lets two writers both succeed and silently loses the commit of one, so it is refused before
anything else is written to it. The probe's key contains a random token, so that concurrent probes do not collide.

The probe does not show that conditions are atomic under a race; the conformance suite tests that for the servers it runs on.
"""

from __future__ import annotations

from storage_tiers.clock import Rng
from storage_tiers.cold.stores.port import ObjectInfo, ObjectStore
from storage_tiers.errors import LogError, PreconditionFailed, StoreRefused, TierUnavailable

#: No probe takes longer than this, so an older key was left by a node that died during its probe. In ms, by the store's clock.
LEFT_OVER_MS = 120_000
PROBE_NAME = "probe-"


async def probe_conditional_writes(store: ObjectStore, key_prefix: str, rng: Rng) -> None:
    """Sends seven small requests under `key_prefix`, one to delete the probe's key, and one to find keys that dead nodes left.

    `StoreRefused` names what the store ignores or denies; `TierUnavailable` if it does not answer.
    """
    name = f"{key_prefix}{PROBE_NAME}"
    key = f"{name}{rng.token(8).hex()}.json"
    try:
        now_ms = await _probe(store, key)
    finally:
        await _delete_quietly(store, key)
    left_over = [info.key async for info in store.list(name) if info.modified_ms + LEFT_OVER_MS < now_ms]
    if left_over:
        await store.delete(left_over)


async def store_time(store: ObjectStore, key_prefix: str, rng: Rng) -> int:
    """Reads the store's clock (ms) from an object that it writes and deletes."""
    key = f"{key_prefix}{PROBE_NAME}{rng.token(8).hex()}.json"
    try:
        return (await store.put(key, b"clock")).modified_ms
    finally:
        await _delete_quietly(store, key)


async def _probe(store: ObjectStore, key: str) -> int:
    """The store's time, in ms."""
    created = await _accepted(store, key, b"first", "the creation of an absent object", if_absent=True)
    first = created.etag
    await _refused(store, key, "the condition that an object is absent (If-None-Match: *)", if_absent=True)
    replaced = await _accepted(store, key, b"second", "the replacement of the version just written", if_match=first)
    second = replaced.etag
    if second == first:
        raise StoreRefused("the object store gives two versions of an object the same ETag; tidelog cannot use it")
    await _refused(store, key, "the condition that an object has a certain version (If-Match)", if_match=first)
    found = await store.get(key)
    if (found.data, found.etag) != (b"second", second):
        raise StoreRefused("the object store does not return what was just written; tidelog cannot use it")
    await store.delete([key])
    await _refused(store, key, "the condition that an object that is gone has a certain version", if_match=second)
    return replaced.modified_ms


async def _accepted(
    store: ObjectStore, key: str, body: bytes, what: str, *, if_absent: bool = False, if_match: str | None = None
) -> ObjectInfo:
    try:
        return await store.put(key, body, if_absent=if_absent, if_match=if_match)
    except PreconditionFailed as error:
        raise StoreRefused(f"the object store refuses {what} ({error}); tidelog needs conditional writes") from error


async def _refused(
    store: ObjectStore, key: str, what: str, *, if_absent: bool = False, if_match: str | None = None
) -> None:
    try:
        await store.put(key, b"must not be stored", if_absent=if_absent, if_match=if_match)
    except PreconditionFailed:
        return
    raise StoreRefused(
        f"the object store ignores {what}: two writers would overwrite each other's manifests. Use a store with "
        "conditional writes, such as S3, or a local directory"
    )


async def _delete_quietly(store: ObjectStore, key: str) -> None:
    try:
        await store.delete([key])
    except LogError as error:
        if not isinstance(error, TierUnavailable | StoreRefused):
            raise
