"""Ends the transactions that lost records with a disk, or of which the coordinator has lost records.

A partition that ends earlier than before, after a disk failure or a take-over, may lack records of a transaction that is open.
A client that commits it would take them for committed, so it is aborted instead. A partition of `__transaction_state` that
ends earlier knows neither the epochs that producers were given since, which other partitions would refuse, nor the transactions
begun or ended since. Its ids get another producer id with their next producers, and whatever their old ones have open is
aborted, in every partition of this node. So does an id of which a partition that was taken from the bucket knows a later epoch:
the directory is older than the bucket.

Invariants: before a shard decides its first request, no client may continue a transaction that had lost records by then; the
notes of the losses stay until what follows from them is committed, and name the shards where it is: none of those fences its
ids again, whatever another shard still lacks. Not promised: that a transaction is aborted whose partition was found to have
lost records later, and which its client has ended by then; that transactions of producer ids which the shard does not know are
aborted (`tidelog txn find-hanging` shows them); that a transaction stays open which began between a loss and the next round, or
the next start.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.runtime import CoordinatorRuntime, ShardHost
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import OpenPartitions
from storage_tiers import events
from storage_tiers.errors import LogError
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Losses by partition. Two losses are never equal.
Losses = Mapping[TopicPartition, RecoveredEnd]


@dataclass(slots=True)
class _Examined:
    """A loaded shard, and the losses that it knows. `fenced` are its ids that are to be ended. The losses
    `settled` need nothing more: all records that follow from them are committed."""

    shard: TransactionShard
    settled: frozenset[RecoveredEnd] = frozenset()
    known: frozenset[RecoveredEnd] = frozenset()
    fenced: tuple[str, ...] = ()

    def fence(self, own: TopicPartition, lost: Set[TopicPartition] | None, epochs: Mapping[int, int]) -> None:
        ids = dict.fromkeys([*self.fenced, *self.shard.outdate(lost, epochs)])
        if len(ids) > len(self.fenced):
            events.warning(log, "transactions.outdated", partition=own, ids=len(ids))
        self.fenced = tuple(ids)


_NONE: frozenset[TopicPartition] = frozenset()


class OutdatedTransactions:
    """The runtime calls `loaded` with every shard before it decides anything; `tick` ends the fenced ids."""

    def __init__(self, partitions: Iterable[Partition], scheduler: TurnScheduler) -> None:
        self._partitions = partitions
        self._scheduler = scheduler
        self._examined: dict[ShardHost[TransactionShard], _Examined] = {}

    def loaded(self, host: ShardHost[TransactionShard]) -> None:
        """The shard may have been loaded again since the last call. Writes nothing."""
        try:
            shard, before = host.look(_itself), self._examined.get(host)
        except LogError:
            return  # it was dropped, and is loaded again
        if before is None or before.shard is not shard:
            losses = self._losses()
            number = host.partition.partition
            settled = frozenset(end for end in losses.values() if number in end.settled_in)
            self._examined[host] = _Examined(shard, settled, settled)
            self._examine(host.partition, self._examined[host], losses)

    def _losses(self) -> Losses:
        """The losses of partitions that were compared with the bucket, which may hold more."""
        return {
            each.partition: end for each in self._partitions if (end := each.recovered_end) and not each.is_recovering
        }

    @staticmethod
    def _examine(own: TopicPartition, examined: _Examined, losses: Losses) -> None:
        lost = {partition for partition, end in losses.items() if end not in examined.known}
        if lost:
            examined.known = frozenset(losses.values())
            examined.fence(own, None if own in lost else lost, {})

    def is_settled(self, runtime: CoordinatorRuntime[TransactionShard], end: RecoveredEnd) -> bool:
        """Whether all that follows from the loss is committed, in every shard of this node."""
        return end.settled_in >= runtime.hosts.keys()

    async def tick(self, runtime: CoordinatorRuntime[TransactionShard]) -> None:
        hosts, losses = set(runtime.hosts.values()), self._losses()
        self._examined = {host: each for host, each in self._examined.items() if host in hosts}
        epochs = await self._epochs({end for end in losses.values() if not self.is_settled(runtime, end)})
        for host, each in tuple(self._examined.items()):
            self._examine(host.partition, each, losses)
            known = each.known
            if each.settled == known and not each.fenced:
                continue
            each.fence(host.partition, _NONE, epochs)
            if each.fenced:
                await self._end(host, each)
            if not each.fenced and await host.is_settled(each.shard):
                _note_settled(known - each.settled, host.partition.partition)
                each.settled = known

    async def _end(self, host: ShardHost[TransactionShard], examined: _Examined) -> None:
        """Keeps in `fenced` the ids that are left for the next round."""
        rest, examined.fenced = deque(examined.fenced), ()
        open_in, left = self._open(), list[str]()
        turn = self._scheduler.turn()
        try:
            while rest and host.look(_itself) is examined.shard:  # `loaded` examines the next one
                host.change(partial(TransactionShard.end_outdated, name=rest[0], open_in=open_in))
                name = rest.popleft()
                if examined.shard.is_outdated(name):
                    left.append(name)
                if turn.is_over:
                    await turn.rest()
        except LogError:
            pass  # it is loaded again, or its log has no room
        finally:
            turn.leave()
            examined.fenced = (*left, *rest, *examined.fenced)

    async def _epochs(self, losses: Set[RecoveredEnd]) -> Mapping[int, int]:
        """The latest epoch of each producer id that the partitions with these losses know."""
        found: dict[int, int] = {}
        turn = self._scheduler.turn()
        try:
            for each in self._partitions if losses else ():
                if each.recovered_end in losses:
                    for producer_id, entry in list(each.log.hot.end.producers.producers.items()):
                        found[producer_id] = max(entry.epoch, found.get(producer_id, entry.epoch))
                    await turn.rest_if_over()
        finally:
            turn.leave()
        return found

    def _open(self) -> OpenPartitions:
        found: dict[int, set[TopicPartition]] = {}
        for each in self._partitions:
            for producer_id in each.log.hot.end.producers.in_transaction:
                found.setdefault(producer_id, set()).add(each.partition)
        return {producer_id: frozenset(partitions) for producer_id, partitions in found.items()}


def _note_settled(losses: Iterable[RecoveredEnd], coordinator: int) -> None:
    for end in losses:
        end.note_settled(end.settled_in | {coordinator})


def _itself(shard: TransactionShard) -> TransactionShard:
    return shard
