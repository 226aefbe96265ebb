"""Removes expired offsets, offsets of deleted topics, and empty groups without offsets from the group coordinators.

A deleted topic's offsets go at once from the shards that are loaded, in slices of the event loop's time. The periodic pass
finds what a shard that was loading has missed or could not write.

Invariant: an offset goes only if its topic is known to be deleted. A topic that the metadata do not have may come back with the
newer metadata of a restored directory, and its offsets with it. Not promised: that no offset outlives its topic. One of a topic
that was deleted just before the process died may stay for its retention.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import NamedTuple, Protocol

from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import CoordinatorRuntime, ShardHost
from service.metadata.image import Changes, MetadataImage
from service.metadata.log import MetadataLog
from storage_tiers.errors import LogError
from storage_tiers.policy.segments import Now
from storage_tiers.turns import Lane
from storage_tiers.types import TopicPartition


class ExistingPartitions(Protocol):
    def has(self, topic: str, partition: int) -> bool: ...


class _Shard(NamedTuple):
    """A loaded shard and the number of records that it had written."""

    shard: GroupShard
    written: int


_Shards = Mapping[ShardHost[GroupShard], _Shard]


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
        #: Partitions that were deleted since the last pass over the groups began, and how far the shards were then.
        self._newly_gone: dict[TopicPartition, _Shards] = {}
        self._forgetting: asyncio.Task[None] | None = None
        metadata.subscribe(self._changed)

    async def tick(self) -> None:
        """Visits every group of every loaded shard."""
        gone = self._still_gone(self._gone)

        def visit(host: ShardHost[GroupShard], group_id: str) -> None:
            expiry_ms = self._now().expiry_ms
            host.change(lambda shard, now_ms: shard.expire(group_id, min(now_ms, expiry_ms)))
            if host.look(lambda shard: shard.has_offset_of(group_id, gone)):
                before = dict.fromkeys(self._still_gone(gone), host.look(lambda shard: shard.written))
                host.change(lambda shard, now_ms: shard.forget_partitions(group_id, before))

        if await self._walk(visit):
            self._gone -= gone

    async def close(self) -> None:
        self._newly_gone.clear()
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.wait({self._forgetting})

    async def _walk(self, visit: Callable[[ShardHost[GroupShard], str], None]) -> bool:
        """Visits every group of every loaded shard, in slices of the event loop's time. Whether none was missed."""
        turn, has_visited_all = self._lane.turn(), True
        try:
            for host in tuple(self._runtime.hosts.values()):
                try:
                    for group_id in host.look(lambda shard: shard.group_ids()):
                        visit(host, group_id)
                        if turn.is_over:
                            await turn.rest()
                except LogError:  # it is not loaded, was lost meanwhile, or has no room for records
                    has_visited_all = False
        finally:
            turn.leave()
        return has_visited_all

    async def _forget_gone(self) -> None:
        try:
            while self._newly_gone:
                gone, self._newly_gone = self._newly_gone, {}
                await self._walk(partial(_forget, gone.keys(), _by_host(gone)))
        finally:
            self._forgetting = None

    def _shards(self) -> _Shards:
        """The shards that are loaded now, and the records that each has written."""
        found = {}
        for host in self._runtime.hosts.values():
            with contextlib.suppress(LogError):
                found[host] = host.look(lambda shard: _Shard(shard, shard.written))
        return found

    def _still_gone(self, partitions: set[TopicPartition]) -> set[TopicPartition]:
        """Without the partitions that exist again: a topic of the same name may have been created."""
        return {each for each in partitions if not self._existing.has(each.topic, each.partition)}

    def _changed(self, image: MetadataImage, changes: Changes) -> None:
        before, self._seen = self._seen, image
        gone = [
            TopicPartition(topic.name, placed.index)
            for topic_id in changes.topics
            if topic_id not in image.topics and (topic := before.topics.get(topic_id)) is not None
            for placed in topic.partitions
        ]
        if not gone:
            return
        self._gone = self._still_gone(self._gone) | set(gone)
        self._newly_gone.update(dict.fromkeys(gone, self._shards()))
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_gone(), name="forget offsets")


def _by_host(gone: Mapping[TopicPartition, _Shards]) -> dict[ShardHost[GroupShard], dict[TopicPartition, _Shard]]:
    found: dict[ShardHost[GroupShard], dict[TopicPartition, _Shard]] = {}
    for partition, shards in gone.items():
        for host, shard in shards.items():
            found.setdefault(host, {})[partition] = shard
    return found


def _forget(
    gone: Set[TopicPartition],
    deletions: Mapping[ShardHost[GroupShard], Mapping[TopicPartition, _Shard]],
    host: ShardHost[GroupShard],
    group_id: str,
) -> None:
    if not host.look(lambda shard: shard.has_offset_of(group_id, gone)):
        return  # the common case, in a fraction of the time
    now = host.look(lambda shard: shard)
    before = {partition: then.written for partition, then in deletions.get(host, {}).items() if then.shard is now}
    host.change(lambda shard, now_ms: shard.forget_partitions(group_id, before))
