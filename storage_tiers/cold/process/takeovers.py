"""What the tier process does for a node that is built from the bucket, and for what it is built from: metadata snapshots."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from storage_tiers.cold.manifest import keys, snapshot_files
from storage_tiers.cold.manifest.commit import Loaded
from storage_tiers.cold.manifest.lineage import MAX_LOOKED_INTO, Span, follow_one_another
from storage_tiers.cold.manifest.model import Ids, Root, State, first_root
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process.manifests import TierCommits
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.port import FileBody
from storage_tiers.errors import StoreRefused, TierCorrupt, TierObjectMissing
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.types import NO_PRODUCER_ID, TopicId


class Takeovers:
    def __init__(self, commits: TierCommits) -> None:
        self._commits = commits

    async def put_snapshot(self, question: ask.PutSnapshot) -> ask.Done:
        body = FileBody(question.path, 0, question.length, question.crc32c)
        store = await self._commits.store()
        putting = snapshot_files.put_snapshot(store, question.cluster_id, question.incarnation, question.index, body)
        await self._commits.in_time(putting, "writing the metadata's snapshot")
        return ask.Done()

    async def find_snapshot(self, question: ask.FindSnapshot) -> ask.FoundSnapshot:
        async def attempt() -> ask.FoundSnapshot:
            found = await snapshot_files.newest_snapshot(await self._commits.store(), question.cluster_id)
            return ask.FoundSnapshot(None) if found is None else ask.FoundSnapshot(found.key, found.size)

        return await self._commits.reads.until_answered("snapshots of the metadata", attempt)

    async def list_topics(self, question: ask.ListTopics) -> ask.Names:
        async def attempt() -> ask.Names:
            names = await (await self._commits.store()).list_folders(keys.topics_prefix(question.cluster_id))
            return ask.Names(tuple(sorted(name for name in names if name > question.after)[: ask.MAX_NAMES]))

        return await self._commits.reads.until_answered("names of topics", attempt)

    async def list_topic_ids(self, question: ask.ListTopicIds) -> ask.Names:
        async def attempt() -> ask.Names:
            prefix = keys.topic_prefix(question.cluster_id, question.topic)
            return ask.Names(tuple(await (await self._commits.store()).list_folders(prefix)))

        return await self._commits.reads.until_answered(f"ids of topic {question.topic}", attempt)

    async def list_manifests(self, question: ask.ListManifests) -> ask.Numbers:
        async def attempt() -> ask.Numbers:
            topic_id = TopicId.parse(question.topic_id)
            prefix = keys.manifests_prefix(question.cluster_id, question.topic, topic_id)
            found = []
            async for info in (await self._commits.store()).list(prefix):
                try:
                    parsed = keys.parse(info.key)
                except ValueError:
                    continue
                if isinstance(parsed, keys.ManifestKey):
                    found.append(parsed.partition)
            return ask.Numbers(tuple(found))

        return await self._commits.reads.until_answered(f"manifests of topic {question.topic}", attempt)

    async def take_partition(self, question: ask.TakePartition) -> ask.TakenPartition:
        tier = await self._commits.partition(question.ids, question.writer)
        loaded = await self._commits.reads.until_answered(f"manifest of {question.ids}", tier.load)
        if question.dry:
            loaded = await self._newest(tier, loaded)
        root = loaded.root if loaded is not None else first_root(question.ids)
        reached_at = _reached_at(root)
        if root.state is not State.DELETED and not question.dry:
            claiming = tier.claim(max(root.leader_epoch, question.least_epoch, 0))
            root = await self._commits.in_time(claiming, f"claiming {question.ids}")
        return ask.TakenPartition(
            root.state is State.DELETED,
            root.leader_epoch,
            root.log_start,
            root.end,
            reached_at,
            await self._highest_producer(root) if question.with_producers else NO_PRODUCER_ID,
        )

    async def _newest(self, tier: PartitionTier, loaded: Loaded | None) -> Loaded | None:
        """The manifest, if nothing was committed after it. StoreRefused if segments beyond its end show that something was:
        whoever claims it makes it the truth, and the sweeper deletes what it does not name."""
        ids = tier.ids
        while loaded is None or loaded.root.state is not State.DELETED:
            root = loaded.root if loaded is not None else None
            seen = await self._commits.reads.until_answered(
                f"segments of {ids}", functools.partial(self._committed_beyond, ids, root)
            )
            if not seen:
                break
            # Its owner may have committed while it was looked at.
            again = await self._commits.reads.until_answered(f"manifest of {ids}", tier.load)
            if again is not None and again.root.end != (root.end if root is not None else 0):
                loaded = again
                continue
            shows = "has no manifest" if root is None else f"ends at offset {root.end} with commit {root.commit}"
            raise StoreRefused(
                f"{ids} {shows}, but {' and '.join(seen)} were committed after that: the manifest is gone or was replaced by "
                f"an older one, and a node that went on from it would delete them. Put the newest version of "
                f"{ids.manifest_key} back, then start again. Nothing of the partition was changed; delete nothing"
            )
        return loaded

    async def _committed_beyond(self, ids: Ids, root: Root | None) -> Sequence[str]:
        """Keys of unreferenced segments that a commit must have named."""
        store = await self._commits.store()
        known, end = (set(root.keys()), root.end) if root is not None else (set[str](), 0)
        beyond: list[Span] = []
        async for info in store.list(ids.segments_prefix, start_after=f"{ids.segments_prefix}{end:020d}"):
            try:
                parsed = keys.parse(info.key)
                if info.key in known or not isinstance(parsed, keys.SidecarKey):
                    continue
                if root is None and parsed.base > 0:
                    return [info.key]
                data = (await store.get(info.key, 0, sidecar.HEAD_BYTES)).data
                found = sidecar.read_head(data, info.key)
            except (ValueError, TierCorrupt, TierObjectMissing):
                continue
            beyond.append(Span(found.base, found.end, info.key))
            if len(beyond) == MAX_LOOKED_INTO:
                break
        return follow_one_another(beyond) or ()

    async def _highest_producer(self, root: Root) -> int:
        newest = root.sidecar
        if newest is None or root.state is State.DELETED:
            return NO_PRODUCER_ID
        position, length = sidecar.span(newest.sections, (sidecar.EPOCHS, sidecar.PRODUCER))

        async def attempt() -> bytes:
            return (await (await self._commits.store()).get(newest.key, position, length)).data

        data = await self._commits.reads.until_answered(f"bytes of {newest.key}", attempt)
        part = sidecar.parse_part(
            data, position, newest.sections, base=0, end=root.end, length=0, crc=0, where=newest.key
        )
        if not part.producer_snapshot:
            return NO_PRODUCER_ID
        producers = ProducerStateManager.restore(part.producer_snapshot, now_ms=0).producers
        return max(producers, default=NO_PRODUCER_ID)


def _reached_at(root: Root) -> int:
    """When `end` was committed (ms), 0 where it is 0. The root's own time is of its last commit: a claim's, or retention's."""
    if root.end == 0:
        return 0
    ranges = [*root.entries, *(item.entry for item in root.removed if item.entry is not None)]
    return max((entry.added.time_ms for entry in ranges if entry.end == root.end), default=root.committed_at)
