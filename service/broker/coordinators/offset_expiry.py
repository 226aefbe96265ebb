"""Removes expired offsets, offsets of deleted topics, and empty groups without offsets from the group coordinators.

A deleted topic's offsets are removed at once from the shards that are loaded, in slices of the event loop's time. A
shard that was loading, has no room for records or was lost meanwhile is visited again each second (`retry`), even if
a topic of that name exists again. The periodic pass finds the offsets in shards that this node gains later.

Invariant: an offset is removed with its topic only if that topic is known to be deleted. A topic that is merely missing
from the metadata may come back with the newer metadata of a restored directory, and its offsets with it.

An offset may outlive its topic. If the process dies just after a deletion, an offset may stay for its retention. An offset
beside a newer one in an open transaction stays until that transaction ends. An offset of a new topic with the same name may be
removed if its shard is loaded again before the visit, because the loaded records do not show to which of the two topics they
belong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple
from weakref import ReferenceType, ref

from service.broker.background.turns import GLANCES_A_TURN, slices
from service.broker.coordinators.ports import ExistingPartitions
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.shard import GroupShard
from service.coordination.outcome import Outcome
from service.coordination.runtime import ShardHost
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes
from storage_tiers.errors import LogError
from storage_tiers.policy.segments import Now
from storage_tiers.turns import Turn, TurnScheduler
from storage_tiers.types import TopicPartition


class _Shard(NamedTuple):
    """A loaded shard and the number of records that it had written. The reference is weak, so that a dropped shard frees its
    memory before the next one is loaded."""

    shard: ReferenceType[GroupShard]
    written: int


class _Deletion(NamedTuple):
    """Partitions that were deleted in one change. `due` has the shards that may still have offsets of them, in their state at
    that time. It has None for a shard that was loading, because all records that this shard loads are older than the
    deletion."""

    partitions: Sequence[TopicPartition]
    due: dict[ShardHost[GroupShard], _Shard | None]

    def written_before(self, host: ShardHost[GroupShard], shard: GroupShard) -> int:
        """How many of the shard's records are older than the deletion; -1 if the shard is not due."""
        if host not in self.due:
            return -1
        then = self.due[host]
        return then.written if then is not None and then.shard() is shard else shard.loaded_records


#: Visits a group of a shard in steps. A step yields True if it has removed every offset that it should remove.
_Visit = Callable[[ShardHost[GroupShard], str], Iterator[bool]]


class OffsetExpiry:
    """Removes expired offsets and those of deleted topics from all loaded shards, in slices. A shard that refuses the change is
    visited again in the next round."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        metadata: Metadata,
        existing: ExistingPartitions,
        scheduler: TurnScheduler,
        *,
        now: Callable[[], Now],
    ) -> None:
        """`now` is the time by which records expire (`ExpiryClock`), so that a step of the wall clock expires no offset."""
        self._runtime = runtime
        self._existing = existing
        self._scheduler = scheduler
        self._now = now
        self._seen = metadata.image
        #: Partitions of deleted topics whose offsets may still be in a shard that was loading.
        self._gone = {
            TopicPartition(topic.name, number)
            for topic in metadata.image.deleting.values()
            for number in range(topic.partition_count)
        }
        #: Deletions that may have left offsets, and the newest deletion of each partition.
        self._deletions: list[_Deletion] = []
        self._deleted: dict[TopicPartition, _Deletion] = {}
        self._has_new = False
        self._forgetting: asyncio.Task[None] | None = None
        metadata.subscribe(self._changed)

    async def tick(self) -> None:
        """Visits every group of every loaded shard."""
        gone = frozenset(self._gone)

        def visit(host: ShardHost[GroupShard], group_id: str) -> Iterator[bool]:
            expiry_ms = self._now().expiry_ms
            shares = host.look(lambda shard: shard.offset_shares(group_id))
            for some in shares:
                host.change(partial(_expire, group_id, some, expiry_ms, is_last=some is shares[-1]))
                yield True
            if not host.look(lambda shard: shard.has_offset_of(group_id, gone)):
                return
            for some in host.look(lambda shard: shard.offset_shares(group_id)):
                written = host.look(lambda shard: shard.written)
                before = dict.fromkeys((each for each in some if each in gone and not self._exists(each)), written)
                host.change(partial(_forget_partitions, group_id, before))
                yield True

        hosts = tuple(self._runtime.hosts.values())
        if len(await self._walk(hosts, visit)) == len(hosts):
            self._gone -= gone

    async def retry(self) -> None:
        """Starts another visit of the shards that may still have offsets of deleted topics."""
        if self._deletions:
            self._begin_forgetting()

    async def close(self) -> None:
        self._deletions.clear()
        self._has_new = False
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.wait({self._forgetting})

    async def _walk(self, hosts: Collection[ShardHost[GroupShard]], visit: _Visit) -> Collection[ShardHost[GroupShard]]:
        """Visits every group of the loaded shards, in slices of the event loop's time. Returns the hosts where every visit
        succeeded and every decision is committed."""
        turn = self._scheduler.turn()
        try:
            visited = {host: shard for host in hosts if (shard := await self._visit(host, visit, turn)) is not None}
        finally:
            turn.leave()
        settled = await asyncio.gather(*(host.is_settled(shard) for host, shard in visited.items()))
        return [host for host, is_settled in zip(visited, settled, strict=True) if is_settled]

    async def _visit(self, host: ShardHost[GroupShard], visit: _Visit, turn: Turn) -> GroupShard | None:
        """Visits every group of one shard. Returns the shard if every visit was successful."""
        try:
            shard, is_whole = host.look(lambda shard: shard), True
            for is_done in chain.from_iterable(visit(host, group_id) for group_id in shard.group_ids()):
                is_whole &= is_done
                if turn.is_over:
                    await turn.rest()
        except LogError:  # the shard is not loaded, was lost meanwhile, or has no room for records
            return None
        return shard if is_whole else None

    # --- deleted topics -----------------------------------------------------------------------------------------------
    def _begin_forgetting(self) -> None:
        self._has_new = True
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_deleted(), name="forget offsets")

    async def _forget_deleted(self) -> None:
        try:
            while self._has_new:
                self._has_new = False
                await self._forget_once()
        finally:
            self._forgetting = None

    async def _forget_once(self) -> None:
        deletions, hosts = tuple(self._deletions), tuple(self._runtime.hosts.values())
        due = [host for host in hosts if any(host in each.due for each in deletions)]
        done = set(await self._walk(due, self._forget))
        for deletion in deletions:
            for host in tuple(deletion.due):
                if host in done or host not in hosts:
                    del deletion.due[host]
            if not deletion.due:
                self._deletions.remove(deletion)
                await self._drop(deletion)

    async def _drop(self, deletion: _Deletion) -> None:
        """Forgets a deletion once no offset of it is left."""
        async for part in slices(deletion.partitions, GLANCES_A_TURN):
            for partition in part:
                if self._deleted.get(partition) is deletion:
                    del self._deleted[partition]

    def _forget(self, host: ShardHost[GroupShard], group_id: str) -> Iterator[bool]:
        """Removes a group's offsets of deleted topics. Yields False where an open transaction prevents the removal of the
        rest."""
        deleted = self._deleted
        if not host.look(lambda shard: shard.has_offset_of(group_id, deleted.keys())):
            yield True  # the common case, in a fraction of the time
            return
        for some in host.look(lambda shard: shard.offset_shares(group_id)):
            now = host.look(lambda shard: shard)
            before = {each: deleted[each].written_before(host, now) for each in some if each in deleted}
            host.change(partial(_forget_partitions, group_id, before))
            yield not now.has_pending_beside(group_id, before)

    def _shards(self) -> dict[ShardHost[GroupShard], _Shard | None]:
        """The shards as they are now."""
        found: dict[ShardHost[GroupShard], _Shard | None] = {}
        for host in self._runtime.hosts.values():
            found[host] = None
            with contextlib.suppress(LogError):
                found[host] = host.look(lambda shard: _Shard(ref(shard), shard.written))
        return found

    def _exists(self, partition: TopicPartition) -> bool:
        """Whether the partition exists again, in a new topic with the name of the deleted one."""
        return self._existing.has(partition.topic, partition.partition)

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
        self._gone.update(gone)
        deletion = _Deletion(gone, self._shards())
        if deletion.due:
            self._deletions.append(deletion)
            self._deleted.update(dict.fromkeys(gone, deletion))
            self._begin_forgetting()


def _expire(
    group_id: str,
    partitions: Sequence[TopicPartition],
    expiry_ms: int,
    shard: GroupShard,
    now_ms: int,
    *,
    is_last: bool,
) -> Outcome:
    return shard.expire(group_id, partitions, min(now_ms, expiry_ms), is_last=is_last)


def _forget_partitions(group_id: str, before: Mapping[TopicPartition, int], shard: GroupShard, now_ms: int) -> Outcome:
    return shard.forget_partitions(group_id, before)
