"""Ends transactions whose records, or whose coordinator's records, were lost with a disk.

After a disk failure or a take-over a partition may end earlier than before and lack records of an open transaction. If the
client committed the transaction, it would believe that the lost records are committed. So the transaction is aborted. A
partition of `__transaction_state` that ends earlier has lost two facts. It no longer knows the epochs that producers have
received after its end, so other partitions would refuse the epochs that it still knows. And it does not know which transactions
began or ended after its end. Each of its transactional ids gets a new producer id with its next producer. The open transactions
of the old producer ids are aborted in every partition of this node. The same holds for an id if a partition taken from the
bucket knows a later epoch of it, because then the directory is older than the bucket.

A partition may have an open transaction that its coordinator does not know, under the epoch of the id's next transaction. The
open transaction's marker is lost, and before version 2 of transactions the next marker would decide both. The id is fenced,
too, and the transaction stays open until an operator decides it.

Invariants: when a shard decides its first request, no client can continue a transaction that has already lost records. The
notes of the losses stay until their consequences are committed in every shard. They name the shards that have committed them,
so that these shards do not fence their ids again while others still lack the consequences.

A transaction is not aborted if its client ends it before the loss of its records is found, or if the shard does not know its
producer id (`tidelog txn find-hanging` shows such transactions). A transaction that began between a loss and the next round or
start may be aborted, too.
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

from grpc_api.contract.transactions import ProducerIdAndEpoch
from service.broker.background.turns import GLANCES_A_TURN, slices
from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import OpenPartitions, OpenTransactions
from storage_tiers import events
from storage_tiers.errors import LogError
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Losses by partition. Two losses are never equal.
Losses = Mapping[TopicPartition, RecoveredEnd]


@dataclass(slots=True)
class _Examined:
    """A loaded shard, and the losses that it knows. `fenced` are the ids whose transactions must still be ended. `settled` are
    losses whose consequences are all committed. `seen` are the losses of the last round that examined the shard. The reference
    is weak, so that a dropped shard frees its memory before the next one is loaded."""

    shard: ReferenceType[TransactionShard]
    settled: frozenset[RecoveredEnd] = frozenset()
    known: frozenset[RecoveredEnd] = frozenset()
    fenced: tuple[str, ...] = ()
    #: The ids in `fenced` that have lost only the marker of a transaction. The transaction's outcome is unknown, so it stays
    #: open.
    undecided: frozenset[str] = frozenset()
    seen: frozenset[RecoveredEnd] | None = None

    @property
    def is_due(self) -> bool:
        return bool(self.fenced) or self.settled is not self.known

    def fence(self, own: TopicPartition, lost: Set[TopicPartition] | None, epochs: Mapping[int, int]) -> None:
        self.undecided -= self._fence(own, lost, epochs, None)

    def fence_undecided(self, own: TopicPartition, open_in: OpenTransactions) -> None:
        """Fences the ids of the transactions in `open_in` that the shard does not know. This must precede the producers' next
        transaction there, because the partition would mistake the two for one."""
        self.undecided |= self._fence(own, _NONE, {}, open_in)

    def _fence(
        self,
        own: TopicPartition,
        lost: Set[TopicPartition] | None,
        epochs: Mapping[int, int],
        open_in: OpenTransactions | None,
    ) -> Set[str]:
        shard = self.shard()
        found = shard.outdate(lost, epochs, open_in) if shard is not None else []
        ids = dict.fromkeys([*self.fenced, *found])
        if len(ids) > len(self.fenced):
            events.warning(log, "transactions.outdated", partition=own, ids=len(ids))
        self.fenced = tuple(ids)
        return set(found)


_NONE: frozenset[TopicPartition] = frozenset()


class OutdatedTransactions:
    """The runtime calls `loaded` with every shard before the shard decides its first request. `tick` ends the transactions of
    the fenced ids."""

    def __init__(self, partitions: Iterable[Partition], scheduler: TurnScheduler) -> None:
        self._partitions = partitions
        self._scheduler = scheduler
        self._examined: dict[ShardHost[TransactionShard], _Examined] = {}
        #: The losses of the last round. The object is replaced only when the losses change.
        self._seen: frozenset[RecoveredEnd] = frozenset()

    def loaded(self, host: ShardHost[TransactionShard]) -> None:
        """Examines the shard if it was loaded again since the last call. Writes nothing."""
        try:
            shard, before = host.look(_itself), self._examined.get(host)
        except LogError:
            return  # the shard was dropped, and will be loaded again
        if before is None or before.shard() is not shard:
            losses = dict(chain.from_iterable(map(_loss, self._partitions)))
            number = host.partition.partition
            settled = frozenset(end for end in losses.values() if number in end.settled_in)
            self._examined[host] = _Examined(ref(shard), settled, settled)
            self._examine(host.partition, self._examined[host], losses)
            if open_in := self._open_by_epoch():
                self._examined[host].fence_undecided(host.partition, open_in)

    @staticmethod
    def _examine(own: TopicPartition, examined: _Examined, losses: Losses) -> None:
        """Fences the ids that new losses concern. A settled loss may be new to the shard, if its partition was being compared
        with the bucket when the shard was loaded. A known loss stays known while its partition is compared again."""
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
        """Whether every shard of this node has committed all consequences of the loss."""
        return end.settled_in >= runtime.hosts.keys()

    async def tick(self, runtime: CoordinatorRuntime[TransactionShard]) -> None:
        """Ends the transactions of fenced ids. If no shard has any, and none has a new loss, the round ends early."""
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
        """Ends the transactions of the fenced ids. `fenced` keeps those that are left for the next round."""
        rest, examined.fenced = deque(examined.fenced), ()
        left = list[str]()
        turn = self._scheduler.turn()
        try:
            while rest and (shard := host.look(_itself)) is examined.shard():  # `loaded` examines a reloaded shard
                more = {} if rest[0] in examined.undecided else open_in
                host.change(partial(TransactionShard.end_outdated, name=rest[0], open_in=more))
                name = rest.popleft()
                if shard.is_outdated(name):
                    left.append(name)
                del shard  # the shard may be dropped meanwhile
                if turn.is_over:
                    await turn.rest()
        except LogError:
            pass  # the shard is being loaded again, or its log has no room
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
                    _note_epochs(each, found)
                await turn.rest_if_over()
        finally:
            turn.leave()
        return found

    def _open_by_epoch(self) -> OpenTransactions:
        """The open transactions of the partitions that this node leads, or will lead once the bucket has answered. In other
        partitions an open transaction may only mean that this replica is behind."""
        found: dict[ProducerIdAndEpoch, set[TopicPartition]] = {}
        for each in self._partitions:
            producers = each.log.hot.end.producers
            if not producers.in_transaction or not (each.leads or each.is_recovering):
                continue
            for producer_id in producers.in_transaction:
                producer = ProducerIdAndEpoch(producer_id, producers.producers[producer_id].epoch)
                found.setdefault(producer, set()).add(each.partition)
        return found

    async def _open(self) -> OpenPartitions:
        """The partitions with open transactions, by producer id. This may work in slices, because no fenced producer can begin
        a transaction meanwhile."""
        found: dict[int, set[TopicPartition]] = {}
        async for some in slices(self._partitions, GLANCES_A_TURN):
            for each in some:
                for producer_id in each.log.hot.end.producers.in_transaction:
                    found.setdefault(producer_id, set()).add(each.partition)
        return {producer_id: frozenset(partitions) for producer_id, partitions in found.items()}


def _loss(partition: Partition) -> Sequence[tuple[TopicPartition, RecoveredEnd]]:
    """Returns the partition and its loss, if any. Returns nothing while the partition is compared with the bucket, which may
    hold more records, and while this node does not lead it, because the comparison comes later."""
    end = partition.recovered_end
    return ((partition.partition, end),) if end and partition.leads and not partition.is_recovering else ()


def _note_epochs(known_to: Partition, found: dict[int, int]) -> None:
    for producer_id, entry in list(known_to.log.hot.end.producers.producers.items()):
        found[producer_id] = max(entry.epoch, found.get(producer_id, entry.epoch))


async def _note_settled(losses: Iterable[RecoveredEnd], coordinator: int) -> None:
    joined: dict[frozenset[int], frozenset[int]] = {}
    async for some in slices(losses, GLANCES_A_TURN):
        for end in some:
            known = end.settled_in
            end.note_settled(joined.setdefault(known, known | {coordinator}))


def _itself(shard: TransactionShard) -> TransactionShard:
    return shard
