"""Removes what the group coordinators need no more: offsets whose retention is over, offsets of deleted topics, bare groups.

Deleted topics are seen at once by the shards that are loaded; the periodic pass finds what a shard that was loading has missed.

Invariant: an offset goes only if its topic is known to be deleted. A topic that the metadata do not have may come back with the
newer metadata of a restored directory, and its offsets with it. Not promised: that no offset outlives its topic. One of a topic
that was deleted just before the process died may stay for its retention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import CoordinatorRuntime, ShardHost, ShardState
from service.metadata.image import Changes, MetadataImage
from service.metadata.log import MetadataLog
from storage_tiers.errors import LogError
from storage_tiers.policy.segments import Now
from storage_tiers.turns import Lane
from storage_tiers.types import TopicPartition


class ExistingPartitions(Protocol):
    def has(self, topic: str, partition: int) -> bool: ...


class OffsetExpiry:
    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        metadata: MetadataLog,
        existing: ExistingPartitions,
        lane: Lane,
        *,
        now: Callable[[], Now],
    ) -> None:
        """`now` is the time by which records expire (`ExpiryClock`): a step of the wall clock expires no offset."""
        self._runtime = runtime
        self._existing = existing
        self._lane = lane
        self._now = now
        self._seen = metadata.image
        #: Partitions of deleted topics that a shard which was loading may still have offsets of.
        self._gone = {
            TopicPartition(topic.name, number)
            for topic in metadata.image.deleting.values()
            for number in range(topic.partition_count)
        }
        metadata.subscribe(self._changed)

    async def tick(self) -> None:
        """Visits every group of every loaded shard, in slices of the event loop's time."""
        turn = self._lane.turn()
        gone = {each for each in self._gone if not self._existing.has(each.topic, each.partition)}
        has_visited_all = all(host.state is ShardState.ACTIVE for host in self._runtime.hosts.values())
        try:
            for host in tuple(self._runtime.hosts.values()):
                for group_id in _group_ids(host):
                    _visit(host, group_id, gone, self._now().expiry_ms)
                    if turn.is_over:
                        await turn.rest()
        finally:
            turn.leave()
        if has_visited_all:
            self._gone -= gone

    def _changed(self, image: MetadataImage, changes: Changes) -> None:
        before, self._seen = self._seen, image
        gone = [
            TopicPartition(topic.name, placed.index)
            for topic_id in changes.topics
            if topic_id not in image.topics and (topic := before.topics.get(topic_id)) is not None
            for placed in topic.partitions
        ]
        self._gone = {each for each in self._gone if not self._existing.has(each.topic, each.partition)}
        if gone:
            self._gone.update(gone)
            for host in self._runtime.hosts.values():
                _forget(host, gone)


def _group_ids(host: ShardHost[GroupShard]) -> list[str]:
    try:
        return host.look(lambda shard: shard.group_ids())
    except LogError:
        return []  # it is not loaded; a later pass visits it


def _visit(host: ShardHost[GroupShard], group_id: str, gone: set[TopicPartition], expiry_ms: int) -> None:
    try:
        host.change(lambda shard, now_ms: shard.expire(group_id, min(now_ms, expiry_ms)))
        if gone and not gone.isdisjoint(host.look(lambda shard: shard.committed_partitions(group_id))):
            _forget(host, gone)
    except LogError:
        return  # it was lost meanwhile


def _forget(host: ShardHost[GroupShard], gone: Iterable[TopicPartition]) -> None:
    try:
        host.change(lambda shard, now_ms: shard.forget_partitions(gone))
    except LogError:
        return
