"""Lowers committed offsets to where a partition ends whose newest records were lost: a take-over brings back what the bucket
holds, and a group that had read further would skip the records that are written next.

Invariants: only offsets that the coordinators loaded are lowered, never one that was committed since. A partition stays due
until every coordinator of this node has been visited. Not promised: that no member is told its old offset in the first second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.broker.partition.partition import Partition
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import CoordinatorRuntime, ShardHost, ShardState
from storage_tiers.errors import LogError
from storage_tiers.turns import Lane
from storage_tiers.types import TopicPartition


class RecoveredOffsets:
    def __init__(self, runtime: CoordinatorRuntime[GroupShard], partitions: Iterable[Partition], lane: Lane) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._lane = lane

    async def tick(self) -> None:
        due = [each for each in self._partitions if each.recovered_end is not None]
        if not due:
            return
        ends = {each.partition: each.recovered_end for each in due if each.recovered_end is not None}
        hosts = tuple(self._runtime.hosts.values())
        has_visited_all = all(host.state is ShardState.ACTIVE for host in hosts)
        turn = self._lane.turn()
        try:
            for host in hosts:
                for group_id in _group_ids(host):
                    _lower(host, group_id, ends)
                    if turn.is_over:
                        await turn.rest()
        finally:
            turn.leave()
        if has_visited_all:
            for each in due:
                if each.recovered_end == ends[each.partition]:
                    each.recovered_end = None


def _group_ids(host: ShardHost[GroupShard]) -> list[str]:
    try:
        return host.look(lambda shard: shard.group_ids())
    except LogError:
        return []  # it is not loaded; a later round visits it


def _lower(host: ShardHost[GroupShard], group_id: str, ends: Mapping[TopicPartition, int]) -> None:
    try:
        host.change(lambda shard, _: shard.lower_offsets(group_id, ends))
    except LogError:
        return  # it was lost meanwhile
