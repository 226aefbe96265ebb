"""Lowers committed offsets to the end of a partition that lost its newest records, by a disk failure or a take-over (which
restores only the bucket's records). A group that had read further would skip the records that are written next.

Invariants: only offsets that the coordinators loaded are lowered, never one that was committed since. A partition stays due,
over restarts, too, until every coordinator of this node has been visited and what it lowered is committed. An offset in a
transaction that is open is lowered once the transaction is committed. Not promised: that no member reads its old offset in
the first second, or in the second after such a transaction; that such an offset is lowered if the coordinator is loaded again
before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from service.broker.partition.partition import Partition
from service.broker.partition.recovered_end import forget_recovered_end
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import CoordinatorRuntime, ShardHost
from storage_tiers.errors import LogError
from storage_tiers.turns import Lane
from storage_tiers.types import TopicPartition


class _PendingVisit(NamedTuple):
    """A group of which a transaction was open when it was visited. Another shard knows no more what was loaded then."""

    host: ShardHost[GroupShard]
    shard: GroupShard
    group_id: str
    ends: Mapping[TopicPartition, int]


class RecoveredOffsets:
    def __init__(self, runtime: CoordinatorRuntime[GroupShard], partitions: Iterable[Partition], lane: Lane) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._lane = lane
        self._pending: dict[tuple[ShardHost[GroupShard], str], _PendingVisit] = {}

    async def tick(self) -> None:
        again, self._pending = self._pending, {}
        for key, each in again.items():
            if _shard(each.host) is each.shard and not self._lower(*each):
                self._pending[key] = each
        await self._visit_all()

    async def _visit_all(self) -> None:
        # One that recovers may find more in the bucket.
        due = [each for each in self._partitions if each.recovered_end is not None and not each.is_recovering]
        if not due:
            return
        ends = {each.partition: each.recovered_end for each in due if each.recovered_end is not None}
        hosts = tuple(self._runtime.hosts.values())
        visited = [_shard(host) for host in hosts]
        turn, is_whole = self._lane.turn(), True
        try:
            for host, shard in zip(hosts, visited, strict=True):
                if shard is None:
                    continue
                for group_id in shard.group_ids():
                    is_whole &= self._lower(host, shard, group_id, ends)
                    if turn.is_over:
                        await turn.rest()
        finally:
            turn.leave()
        if is_whole and all([await _is_settled(host, shard) for host, shard in zip(hosts, visited, strict=True)]):
            for each in due:
                if each.recovered_end == ends[each.partition]:
                    forget_recovered_end(each)
                    each.recovered_end = None
                    await asyncio.sleep(0)  # there may be thousands

    def _lower(
        self, host: ShardHost[GroupShard], shard: GroupShard, group_id: str, ends: Mapping[TopicPartition, int]
    ) -> bool:
        """False if the shard was lost meanwhile, or the disk has no room for its records: a later round visits it again."""
        try:
            host.change(lambda found, _: found.lower_offsets(group_id, ends))
        except LogError:
            return False
        if shard.has_pending_above(group_id, ends):
            before = self._pending.get((host, group_id))
            known = {} if before is None else before.ends
            self._pending[host, group_id] = _PendingVisit(host, shard, group_id, {**known, **ends})
        return True


def _shard(host: ShardHost[GroupShard]) -> GroupShard | None:
    try:
        return host.look(lambda shard: shard)
    except LogError:
        return None  # it is not loaded; a later round visits it


async def _is_settled(host: ShardHost[GroupShard], visited: GroupShard | None) -> bool:
    """Whether what was lowered in the visited shard is committed. A shard that was loaded again meanwhile may lack it."""
    try:
        await host.settled()
    except LogError:
        return False
    return visited is not None and _shard(host) is visited
