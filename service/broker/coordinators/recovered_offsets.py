"""Lowers committed offsets to the end of a partition that lost its newest records, by a disk failure or a take-over (which
restores only the bucket's records). Otherwise a group that had read further would skip the next records.

Invariants: a coordinator of this node lowers only offsets that it has loaded, never an offset committed after the load.
Coordinators of other brokers are asked to lower offsets of earlier leader epochs (`Groups.lower_offsets`). A partition stays
due, even after restarts, until every coordinator of the cluster was visited and its lowered offsets are committed. A
coordinator is not visited again for the same loss, because after another load it may have newer offsets. An offset in an open
transaction is lowered once the transaction is committed.

A member may read its old offset in the first second, or in the second after that transaction ends. An offset in a transaction
may stay too high if the coordinator is loaded again first. An offset committed before a coordinator's visit may be lowered if
the coordinator was loaded again in between, or if it is another broker's and the client named no leader epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Set
from itertools import chain, islice
from typing import NamedTuple, Protocol
from weakref import ReferenceType, ref

from grpc_api.contract.coordinator_errors import CoordinatorRecordTooLarge
from grpc_api.contract.groups import LostEnd, LowerOffsets
from grpc_api.messages.log import MAX_PARTITIONS
from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from service.broker.partition.recovered_end import forget_recovered_end, write_recovered_end
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from storage_tiers import events
from storage_tiers.errors import LogError, StorageError
from storage_tiers.turns import Turn, TurnScheduler
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: The ends to which the coordinator of that number has not lowered its offsets yet.
LeftFor = Callable[[int], Mapping[TopicPartition, int]]

#: Partitions whose notes are rewritten in one round. Each needs an fsync, and the next round waits for it.
NOTES_A_ROUND = 50


class _PendingVisit(NamedTuple):
    """A group that had an open transaction when it was visited. It is valid only for this load of the shard. The reference is
    weak, so that a dropped shard frees its memory."""

    host: ShardHost[GroupShard]
    shard: ReferenceType[GroupShard]
    group_id: str
    ends: Mapping[TopicPartition, int]
    epochs: Mapping[TopicPartition, int]


class OtherCoordinators(Protocol):
    """The coordinators of the cluster's groups (`peers.GroupCoordinators`)."""

    def numbers(self) -> Collection[int]:
        """The partitions of `__consumer_offsets`: all of the cluster's coordinators."""

    def elsewhere(self) -> Mapping[int, int]:
        """The coordinators that other brokers have now, with the ids of these brokers."""

    async def lower(self, broker_id: int, request: LowerOffsets) -> Collection[int]:
        """Returns the coordinators that have lowered their offsets; none if the broker does not answer."""


class RecoveredOffsets:
    """Each round visits the groups of every coordinator that has not lowered its offsets yet. A shard that refuses the change
    is visited again in the next round."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        partitions: Iterable[Partition],
        scheduler: TurnScheduler,
        is_settled: Callable[[RecoveredEnd], bool],
        checkpoint: Callable[[], Awaitable[None]],
        others: OtherCoordinators,
        lacks_coordinators: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_settled` tells whether no other work needs the note of a loss. `checkpoint` writes the current ends of logs.
        `lacks_coordinators` tells whether the hosts lack a coordinator of this node because its partition could not be
        opened."""
        self._lacks_coordinators = lacks_coordinators
        self._is_settled = is_settled
        self._checkpoint = checkpoint
        self._others = others
        self._runtime = runtime
        self._partitions = partitions
        self._scheduler = scheduler
        #: By group, and whether epochs decide. Without epochs all loaded offsets are lowered, so the two kinds are kept apart.
        self._pending: dict[tuple[ShardHost[GroupShard], str, bool], _PendingVisit] = {}
        #: Groups whose offsets do not fit a record, each logged once.
        self._too_large: set[str] = set()

    async def tick(self) -> None:
        again, self._pending = self._pending, {}
        for key, each in again.items():
            shard = _shard(each.host)
            if shard is None or shard is not each.shard():
                continue
            if not self._lower(each.host, shard, each.group_id, each.ends, each.epochs):
                self._pending[key] = each
        await self._visit_all()

    async def lower(self, request: LowerOffsets) -> Collection[int]:
        """Lowers offsets of this node's coordinators for another broker (`Groups.lower_offsets`)."""
        hosts = {each: host for each, host in self._runtime.hosts.items() if each in request.coordinators}
        ends = {partition: end.offset for partition, end in request.ends.items()}
        epochs = {partition: end.leader_epoch for partition, end in request.ends.items()}
        return await self._lower_all(hosts, lambda _: ends, epochs)

    async def _visit_all(self) -> None:
        # The end of a partition that is recovering is not final, because the bucket may have more of its records. A partition
        # that this node does not lead is compared with the bucket once this node begins to lead it, under a new leader epoch,
        # which the requests to other brokers name.
        due = [
            (each, end)
            for each in self._partitions
            if (end := each.recovered_end) and each.leads and not each.is_recovering
        ]
        if not due:
            return
        has_all, hosts, left = not self._lacks_coordinators(), dict(self._runtime.hosts), _EndsToLower(due)
        needed = hosts.keys() | self._others.numbers()
        lowered_in = await self._lower_all(hosts, left.left_for, {})
        lowered_in |= await self._lower_elsewhere(
            left.left_for, {each.partition: each.state.leader_epoch for each, _ in due}
        )
        joined: dict[frozenset[int], frozenset[int]] = {}
        for each, end in due:
            # A partition that was deleted, or lost more records meanwhile, has another end.
            if each.recovered_end is end and not lowered_in <= (known := end.lowered_in):
                end.note_lowered(joined.setdefault(known, known | lowered_in))
        await self._checkpoint_changes([end for _, end in due])
        for each, end in due if has_all else ():
            is_current = each.recovered_end is end and end.is_checkpointed
            if is_current and end.lowered_in >= needed and self._is_settled(end):
                forget_recovered_end(each)
                each.recovered_end = None
                await asyncio.sleep(0)  # there may be thousands
        await _save_lowered(due)

    async def _checkpoint_changes(self, ends: Iterable[RecoveredEnd]) -> None:
        """Writes a checkpoint before a note records progress or is forgotten."""
        changed = [end for end in ends if not end.is_checkpointed]
        if not changed:
            return
        for end in changed:
            end.is_checkpointed = True  # a change during the write resets it
        try:
            await self._checkpoint()
        except BaseException:
            for end in changed:
                end.is_checkpointed = False
            raise

    async def _lower_elsewhere(self, left_for: LeftFor, epochs: Mapping[TopicPartition, int]) -> frozenset[int]:
        """Does the same as `_lower_all` for the coordinators of other brokers. `epochs` are the leader epochs of the
        partitions."""
        asked: dict[tuple[int, int], tuple[set[int], Mapping[TopicPartition, int]]] = {}
        for number, broker_id in self._others.elsewhere().items():
            # Coordinators with the same ends share a request; `left_for` returns the same object for them.
            if left := left_for(number):
                asked.setdefault((broker_id, id(left)), (set(), left))[0].add(number)

        async def ask(broker_id: int, numbers: set[int], left: Mapping[TopicPartition, int]) -> Set[int]:
            lowered, ends = numbers, [(partition, LostEnd(end, epochs[partition])) for partition, end in left.items()]
            for first in range(0, len(ends), MAX_PARTITIONS):
                request = LowerOffsets(lowered, dict(ends[first : first + MAX_PARTITIONS]))
                lowered = lowered.intersection(await self._others.lower(broker_id, request))
                if not lowered:
                    break
            return lowered

        found = await asyncio.gather(*(ask(broker_id, *of_one) for (broker_id, _), of_one in asked.items()))
        return frozenset(chain.from_iterable(found))

    async def _lower_all(
        self, hosts: Mapping[int, ShardHost[GroupShard]], left_for: LeftFor, epochs: Mapping[TopicPartition, int]
    ) -> frozenset[int]:
        """Lowers the offsets of the coordinators that have not done so. Returns the coordinators that have lowered all offsets
        that were too high, and have committed the change."""
        turn, visited = self._scheduler.turn(), {}
        try:
            for number, host in hosts.items():
                left, shard = left_for(number), _shard(host)
                if shard is not None and left and await self._lower_groups(host, shard, left, epochs, turn):
                    visited[number] = shard
        finally:
            turn.leave()
        settled = await asyncio.gather(*(hosts[number].is_settled(shard) for number, shard in visited.items()))
        return frozenset(number for number, is_settled in zip(visited, settled, strict=True) if is_settled)

    async def _lower_groups(
        self,
        host: ShardHost[GroupShard],
        shard: GroupShard,
        ends: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
        turn: Turn,
    ) -> bool:
        """Lowers the offsets of every group. Returns False if some group has to be visited again."""
        is_whole = True
        for group_id in shard.group_ids():
            is_whole &= self._lower(host, shard, group_id, ends, epochs)
            if turn.is_over:
                await turn.rest()
        return is_whole

    def _lower(
        self,
        host: ShardHost[GroupShard],
        shard: GroupShard,
        group_id: str,
        ends: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> bool:
        """Lowers a group's offsets. False if a later round has to try again: the shard was lost meanwhile, the disk has no room
        for its records, or they are too large."""
        try:
            host.change(lambda found, _: found.lower_offsets(group_id, ends, epochs))
        except CoordinatorRecordTooLarge as error:
            if group_id not in self._too_large:
                self._too_large.add(group_id)
                events.warning(log, "group.offsets_not_lowered", group=group_id, error=error)
            return False
        except LogError:
            return False
        self._too_large.discard(group_id)
        if pending := shard.pending_above(group_id, ends, epochs):
            # Only these ends are kept, because a request may name any partitions, and many.
            ends = {each: ends[each] for each in pending}
            epochs = {each: epochs[each] for each in pending} if epochs else {}
            key = host, group_id, bool(epochs)
            if (before := self._pending.get(key)) is not None:
                ends, epochs = {**before.ends, **ends}, {**before.epochs, **epochs}
            self._pending[key] = _PendingVisit(host, ref(shard), group_id, ends, epochs)
        return True


def _shard(host: ShardHost[GroupShard]) -> GroupShard | None:
    try:
        return host.look(lambda shard: shard)
    except LogError:
        return None  # it is not loaded; a later round visits it


class _EndsToLower:
    """The ends of partitions, grouped by the set of coordinators that have lowered their offsets. There are few of these
    sets."""

    def __init__(self, due: Iterable[tuple[Partition, RecoveredEnd]]) -> None:
        self._ends: dict[frozenset[int], dict[TopicPartition, int]] = {}
        #: Partitions that lost records twice, so that the end is not the same for all coordinators. They are few.
        self._later: list[tuple[TopicPartition, RecoveredEnd]] = []
        for each, end in due:
            self._ends.setdefault(end.lowered_in, {})[each.partition] = end.offset
            if end.later_ends:
                self._later.append((each.partition, end))

    def left_for(self, coordinator: int) -> Mapping[TopicPartition, int]:
        """The ends to which this coordinator has not lowered its offsets yet."""
        left = [some for lowered_in, some in self._ends.items() if coordinator not in lowered_in]
        found = left[0] if len(left) == 1 else dict(chain.from_iterable(some.items() for some in left))
        later = {each: end.end_for(coordinator) for each, end in self._later if each in found}
        return {**found, **later} if later else found


async def _save_lowered(due: Iterable[tuple[Partition, RecoveredEnd]]) -> None:
    """Notes on disk which coordinators have lowered their offsets, for up to NOTES_A_ROUND of the partitions that stay due."""
    pending = (
        (each, end) for each, end in due if each.recovered_end is end and end.is_checkpointed and not end.is_noted
    )
    for each, end in islice(pending, NOTES_A_ROUND):
        try:
            await asyncio.to_thread(write_recovered_end, each, end, end.lowered_in, end.settled_in)
            if each.recovered_end not in (end, None):  # the partition lost more records during the write
                write_recovered_end(each, each.recovered_end)
        except StorageError:
            return  # the next round tries again
