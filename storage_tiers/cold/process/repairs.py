"""The tier process's part in repairs of a bucket that went backwards: it proves, compares, and writes files that only a repair
may write."""

from __future__ import annotations

import asyncio

from storage_tiers.cold.manifest import json as manifest_json
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import read_shown, recreate_cluster
from storage_tiers.cold.manifest.topic_file import decode_topic, republish_topic, shown_topic
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process.manifests import TierCommits
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierCorrupt, TierObjectMissing

#: Manifests that are read at once.
AT_ONCE = 16


class Repairs:
    def __init__(self, commits: TierCommits) -> None:
        self._commits = commits

    async def repair(self, question: ask.Repair) -> ask.Repaired:
        tier = await self._commits.partition(question.ids, question.writer, question.seen)
        repairing = tier.repair(question.local, apply=question.apply, accepted=question.accepted)
        report, root = await self._commits.in_time(repairing, f"repairing {question.ids}", question.patience_s)
        return ask.Repaired(report, None if root is None else manifest_json.encode(root).decode())

    async def shown_cluster(self, question: ask.ShownCluster) -> ask.FoundCluster:
        async def attempt() -> ask.FoundCluster:
            return ask.FoundCluster(await read_shown(await self._commits.store(), question.cluster_id))

        return await self._commits.reads.until_answered("cluster.json", attempt)

    async def recreate_cluster(self, question: ask.RecreateCluster) -> ask.Done:
        writing = recreate_cluster(await self._commits.store(), question.new, question.shown)
        await self._commits.in_time(writing, "writing cluster.json again")
        return ask.Done()

    async def highest_incarnation(self, question: ask.HighestIncarnation) -> ask.FoundIncarnation:
        looking = self._highest_incarnation(await self._commits.store(), question.cluster_id)
        return await self._commits.in_time(looking, "looking through all manifests", ask.REPAIR_S_PER_CLUSTER)

    async def _highest_incarnation(self, store: ObjectStore, cluster_id: str) -> ask.FoundIncarnation:
        highest = ask.FoundIncarnation(0, "")
        bunch: list[str] = []
        async for info in store.list(keys.cluster_prefix(cluster_id)):
            try:
                parsed = keys.parse(info.key)
            except ValueError:
                continue
            if isinstance(parsed, keys.SnapshotKey) and parsed.incarnation > highest.number:
                highest = ask.FoundIncarnation(parsed.incarnation, info.key)
            elif isinstance(parsed, keys.ManifestKey | keys.TopicFile):
                bunch.append(info.key)
                if len(bunch) == AT_ONCE:
                    highest = await _highest(store, bunch, highest)
                    bunch.clear()
        return await _highest(store, bunch, highest)

    async def shown_topic(self, question: ask.ShownTopic) -> ask.FoundTopic:
        async def attempt() -> ask.FoundTopic:
            return ask.FoundTopic(await shown_topic(await self._commits.store(), question.cluster_id, question.topic))

        return await self._commits.reads.until_answered("topic.json", attempt)

    async def republish_topic(self, question: ask.RepublishTopic) -> ask.FoundTopic:
        publishing = republish_topic(await self._commits.store(), question.topic)
        return ask.FoundTopic(await self._commits.in_time(publishing, f"publishing topic {question.topic.topic}"))


async def _highest(store: ObjectStore, bunch: list[str], highest: ask.FoundIncarnation) -> ask.FoundIncarnation:
    numbers = await asyncio.gather(*(_incarnation(store, key) for key in bunch))
    found = (ask.FoundIncarnation(number, key) for number, key in zip(numbers, bunch, strict=True))
    return max((highest, *found), key=lambda each: each.number)


async def _incarnation(store: ObjectStore, key: str) -> int:
    """Of a manifest or a topic's file; 0 for one that cannot be read."""
    parsed = keys.parse(key)
    try:
        data = (await store.get(key)).data
        if isinstance(parsed, keys.TopicFile):
            return decode_topic(data, parsed.cluster, parsed.topic).incarnation
        return manifest_json.decode(data, sound=False).incarnation
    except (TierCorrupt, TierObjectMissing):
        return 0
