"""Answers questions about the store as a whole: its clock, listings, metadata snapshots, and abandoned uploads."""

from __future__ import annotations

from storage_tiers.cold.manifest import keys, snapshot_files
from storage_tiers.cold.process import cluster_operations as ask_cluster
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.segments.sweeper import Listed
from storage_tiers.cold.stores.port import FileBody, ObjectStore
from storage_tiers.cold.stores.probe import probe_conditional_writes, store_time
from storage_tiers.policy.orphans import abandoned
from storage_tiers.types import TopicId


async def probe(context: TierContext, question: ask_cluster.Probe) -> None:
    await probe_conditional_writes(await context.store(), question.key_prefix, context.rng)


async def read_store_time(context: TierContext, question: ask_cluster.ReadStoreTime) -> int:
    return await _store_time(context, question.key_prefix)


async def list_keys(store: ObjectStore, question: ask.ListKeys) -> ask.ListedKeys:
    found: list[Listed] = []
    async for info in store.list(question.prefix, start_after=question.after):
        found.append(Listed(info.key, info.modified_ms))
        if len(found) == ask.LISTED_KEYS:
            break
    return ask.ListedKeys(tuple(found), len(found) < ask.LISTED_KEYS)


async def abort_uploads(context: TierContext, question: ask.AbortUploads) -> int:
    store = await context.store()
    found = [upload async for upload in store.unfinished_uploads(question.prefix)]
    if not found:
        return 0
    now_ms = context.store_clock.now_ms()
    if now_ms is None:
        await _store_time(context, question.prefix)
        now_ms = context.store_clock.now_ms()
        assert now_ms is not None
    old = abandoned(found, now_ms, question.grace_ms)
    for upload in old:
        await store.abort_upload(upload)
    return len(old)


async def put_snapshot(store: ObjectStore, question: ask_cluster.PutSnapshot) -> None:
    body = FileBody(question.path, 0, question.length, question.crc32c)
    await snapshot_files.put_snapshot(
        store, question.cluster_id, question.incarnation, question.index, question.term, body
    )


async def find_snapshot(store: ObjectStore, question: ask_cluster.FindSnapshot) -> ask_cluster.FoundSnapshot:
    found = await snapshot_files.newest_snapshot(store, question.cluster_id)
    return ask_cluster.FoundSnapshot(None) if found is None else ask_cluster.FoundSnapshot(found.key, found.size)


async def list_topics(store: ObjectStore, question: ask_cluster.ListTopics) -> tuple[str, ...]:
    names = await store.list_folders(keys.topics_prefix(question.cluster_id))
    return tuple(sorted(name for name in names if name > question.after)[: ask_cluster.MAX_NAMES])


async def list_topic_ids(store: ObjectStore, question: ask_cluster.ListTopicIds) -> tuple[str, ...]:
    return tuple(await store.list_folders(keys.topic_prefix(question.cluster_id, question.topic)))


async def list_manifests(store: ObjectStore, question: ask_cluster.ListManifests) -> tuple[int, ...]:
    prefix = keys.manifests_prefix(question.cluster_id, question.topic, TopicId.parse(question.topic_id))
    found = []
    async for info in store.list(prefix):
        try:
            parsed = keys.parse(info.key)
        except ValueError:
            continue
        if isinstance(parsed, keys.ManifestKey):
            found.append(parsed.partition)
    return tuple(found)


async def _store_time(context: TierContext, key_prefix: str) -> int:
    unix_ms = await store_time(await context.store(), key_prefix, context.rng)
    context.store_clock.wrote(unix_ms)
    return unix_ms
