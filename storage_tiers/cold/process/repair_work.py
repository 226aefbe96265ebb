"""Finds the highest incarnation in a cluster's bucket. No repair writes a lower one into `cluster.json`."""

from __future__ import annotations

import asyncio

from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.topic_file import decode_topic
from storage_tiers.cold.process import cluster_operations as ask_cluster
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierCorrupt, TierObjectMissing

#: The number of manifests and topic files that are read concurrently.
AT_ONCE = 16


async def highest_incarnation(
    store: ObjectStore, question: ask_cluster.HighestIncarnation
) -> ask_cluster.FoundIncarnation:
    highest = ask_cluster.FoundIncarnation(0, "")
    bunch: list[str] = []
    async for info in store.list(keys.cluster_prefix(question.cluster_id)):
        try:
            parsed = keys.parse(info.key)
        except ValueError:
            continue
        if isinstance(parsed, keys.SnapshotKey) and parsed.incarnation > highest.number:
            highest = ask_cluster.FoundIncarnation(parsed.incarnation, info.key)
        elif isinstance(parsed, keys.ManifestKey | keys.TopicFile):
            bunch.append(info.key)
            if len(bunch) == AT_ONCE:
                highest = await _highest(store, bunch, highest)
                bunch.clear()
    return await _highest(store, bunch, highest)


async def _highest(
    store: ObjectStore, bunch: list[str], highest: ask_cluster.FoundIncarnation
) -> ask_cluster.FoundIncarnation:
    numbers = await asyncio.gather(*(_incarnation(store, key) for key in bunch))
    found = (ask_cluster.FoundIncarnation(number, key) for number, key in zip(numbers, bunch, strict=True))
    return max((highest, *found), key=lambda each: each.number)


async def _incarnation(store: ObjectStore, key: str) -> int:
    """The incarnation in a manifest or a topic's file; 0 if it cannot be read."""
    parsed = keys.parse(key)
    try:
        data = (await store.get(key)).data
        if isinstance(parsed, keys.TopicFile):
            return decode_topic(data, parsed.cluster, parsed.topic).incarnation
        return manifest_json.decode(data, sound=False).incarnation
    except (TierCorrupt, TierObjectMissing):
        return 0
