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

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from weakref import ReferenceType, ref

from service.broker.background.turns import GLANCES_A_TURN, slices
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
    `settled` need nothing more: all records that follow from them are committed. The shard itself is not kept: one that is
    dropped gives its memory back before the next one is loaded. `seen` are the losses of the last round that it has seen."""

    shard: ReferenceType[TransactionShard]
    settled: frozenset[RecoveredEnd] = frozenset()
    known: frozenset[RecoveredEnd] = frozenset()
    fenced: tuple[str, ...] = ()
    seen: frozenset[RecoveredEnd] | None = None

    @property
    def is_due(self) -> bool:
        return bool(self.fenced) or self.settled is not self.known

    def fence(self, own: TopicPartition, lost: Set[TopicPartition] | None, epochs: Mapping[int, int]) -> None:
        shard = self.shard()
        ids = dict.fromkeys([*self.fenced, *(shard.outdate(lost, epochs) if shard is not None else ())])
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
        #: The losses of the last round, the same object as long as they are the same.
        self._seen: frozenset[RecoveredEnd] = frozenset()

    def loaded(self, host: ShardHost[TransactionShard]) -> None:
        """The shard may have been loaded again since the last call. Writes nothing."""
        try:
            shard, before = host.look(_itself), self._examined.get(host)
        except LogError:
            return  # it was dropped, and is loaded again
        if before is None or before.shard() is not shard:
            losses = dict(chain.from_iterable(map(_loss, self._partitions)))
            number = host.partition.partition
            settled = frozenset(end for end in losses.values() if number in end.settled_in)
            self._examined[host] = _Examined(ref(shard), settled, settled)
            self._examine(host.partition, self._examined[host], losses)

    @staticmethod
    def _examine(own: TopicPartition, examined: _Examined, losses: Losses) -> None:
        """A loss may be new to the shard and settled: its partition was compared with the bucket when the shard was loaded, or
        was forgotten since it was looked at. One that is known stays known while its partition is compared again."""
        found = {partition: end for partition, end in losses.items() if end not in examined.known}
        if not found:
            return
        is_due, ends = examined.settled is not examined.known, frozenset(found.values())
        settled = frozenset(end for end in ends if own.partition in end.settled_in)
        examined.known |= ends
        if settled == ends and not is_due:
            examined.settled = examined.known
            return
        examined.settled |= settled
        lost = {partition for partition, end in found.items() if end not in settled}
        if lost:
            examined.fence(own, None if own in lost else lost, {})

    def is_settled(self, runtime: CoordinatorRuntime[TransactionShard], end: RecoveredEnd) -> bool:
        """Whether all that follows from the loss is committed, in every shard of this node."""
        return end.settled_in >= runtime.hosts.keys()

    async def tick(self, runtime: CoordinatorRuntime[TransactionShard]) -> None:
        """Where no loss is new to a shard, the round only looks for new ones."""
        hosts = set(runtime.hosts.values())
        self._examined = {host: each for host, each in self._examined.items() if host in hosts}
        await self._examine_all()
        due = [(host, each) for host, each in self._examined.items() if each.is_due]
        if not due:
            return
        epochs = await self._epochs(frozenset[RecoveredEnd]().union(*(each.known - each.settled for _, each in due)))
        for host, each in due if epochs else ():
            each.fence(host.partition, _NONE, epochs)
            await asyncio.sleep(0)
        open_in = await self._open() if any(each.fenced for _, each in due) else {}
        for host, each in due:
            if each.fenced:
                await self._end(host, each, open_in)
            shard, known = each.shard(), each.known
            if not each.fenced and shard is not None and await host.is_settled(shard):
                await _note_settled(known - each.settled, host.partition.partition)
                each.settled = known

    async def _examine_all(self) -> None:
        losses: dict[TopicPartition, RecoveredEnd] = {}
        async for some in slices(self._partitions, GLANCES_A_TURN):
            losses.update(chain.from_iterable(map(_loss, some)))
        now = frozenset(losses.values())
        if now != self._seen:
            self._seen = now
        for host, each in tuple(self._examined.items()):
            if each.seen is not self._seen:
                each.seen = self._seen
                self._examine(host.partition, each, losses)
                await asyncio.sleep(0)

    async def _end(self, host: ShardHost[TransactionShard], examined: _Examined, open_in: OpenPartitions) -> None:
        """Keeps in `fenced` the ids that are left for the next round."""
        rest, examined.fenced = deque(examined.fenced), ()
        left = list[str]()
        turn = self._scheduler.turn()
        try:
            while rest and (shard := host.look(_itself)) is examined.shard():  # `loaded` examines the next one
                host.change(partial(TransactionShard.end_outdated, name=rest[0], open_in=open_in))
                name = rest.popleft()
                if shard.is_outdated(name):
                    left.append(name)
                del shard  # it may be dropped meanwhile
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

    async def _open(self) -> OpenPartitions:
        """In slices: no fenced producer begins a transaction meanwhile."""
        found: dict[int, set[TopicPartition]] = {}
        async for some in slices(self._partitions, GLANCES_A_TURN):
            for each in some:
                for producer_id in each.log.hot.end.producers.in_transaction:
                    found.setdefault(producer_id, set()).add(each.partition)
        return {producer_id: frozenset(partitions) for producer_id, partitions in found.items()}


def _loss(partition: Partition) -> Sequence[tuple[TopicPartition, RecoveredEnd]]:
    """None while the partition is compared with the bucket, which may hold more."""
    end = partition.recovered_end
    return () if end is None or partition.is_recovering else ((partition.partition, end),)


async def _note_settled(losses: Iterable[RecoveredEnd], coordinator: int) -> None:
    joined: dict[frozenset[int], frozenset[int]] = {}
    async for some in slices(losses, GLANCES_A_TURN):
        for end in some:
            known = end.settled_in
            end.note_settled(joined.setdefault(known, known | {coordinator}))


def _itself(shard: TransactionShard) -> TransactionShard:
    return shard
