"""Writes the markers of decided transactions, and tells their shard when all markers are committed.

A marker is written again until its partition has it, or is deleted. If the coordinator is lost or loaded again, the next load
writes the markers again, and partitions accept a repeated marker.

Invariant: one task per transaction. It ends when the transaction is completed, when its coordinator is gone, or when a
partition knows a newer coordinator, which then decides, as in Kafka. A partition that knows a later epoch of the producer needs
no marker: the transaction has ended there, and the coordinator has lost its records of that end. Kafka's coordinator stops in
that case, and no other producer can begin under the id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from grpc_api.contract.coordinator_errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    CoordinatorRecordTooLarge,
    NotCoordinator,
)
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import Markers
from service.broker.coordinators.ports import ExistingPartitions, LedPartitions
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionShard
from service.metadata.internal_topics import CONSUMER_OFFSETS
from storage_tiers import events
from storage_tiers.backoff import Backoff
from storage_tiers.clock import Clock
from storage_tiers.errors import (
    InvalidProducerEpoch,
    LogError,
    NotLeader,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
    as_value,
)
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Markers that are written in one turn of the event loop, over all transactions. They take a fraction of a millisecond.
MARKERS_A_TURN = 16


class MarkedPartition(Protocol):
    """A partition that accepts markers (`Partition`)."""

    def append_marker(self, markers: Markers, coordinator_epoch: int) -> Appended: ...


class MarkersElsewhere(Protocol):
    """The other brokers, which lead the other partitions (`Peers`)."""

    def leader_of(self, partition: TopicPartition) -> int | None: ...

    async def write_markers(
        self, broker_id: int, markers: Markers, coordinator_epoch: int
    ) -> Sequence[tuple[TopicPartition, LogError]]: ...


class _MarkerTurns:
    """Shares each turn of the loop among all transactions, in the order of their requests. One transaction may have all
    partitions of a cluster, and a node may complete hundreds at once."""

    def __init__(self) -> None:
        self._left = MARKERS_A_TURN
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_planned = False

    async def through(self, partitions: Iterable[TopicPartition]) -> AsyncIterator[TopicPartition]:
        """Yields each partition when its marker may be written."""
        for partition in partitions:
            # Planned even if this partition waits, because all others of this turn may be cancelled before they plan the next.
            self._plan()
            if self._waiting or not self._left:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
            else:
                self._left -= 1
            yield partition

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_planned, self._left = False, MARKERS_A_TURN
        while self._waiting and self._left:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        if self._waiting:
            self._plan()


class TransactionMarkers:
    """The writers of all transactions that are being completed, one task for each."""

    def __init__(
        self,
        partitions: LedPartitions[MarkedPartition],
        groups: CoordinatorRuntime[GroupShard],
        existing: ExistingPartitions,
        epoch_of: Callable[[TopicPartition], int],
        peers: MarkersElsewhere,
        *,
        admit: Callable[[], None],
        clock: Clock,
        backoff: Callable[[], Backoff],
    ) -> None:
        """`epoch_of` gives the leader epoch of a coordinator's partition, by which partitions refuse markers of earlier
        coordinators. `admit` raises StorageError while the disk has no room for a marker."""
        self._partitions = partitions
        self._groups = groups
        self._existing = existing
        self._epoch_of = epoch_of
        self._peers = peers
        self._admit = admit
        self._clock = clock
        self._backoff = backoff
        #: By transactional id: the deciding coordinator, the markers, and the task that writes them.
        self._writing: dict[str, tuple[ShardHost[TransactionShard], Markers, asyncio.Task[None]]] = {}
        self._is_closed = False
        self._turns = _MarkerTurns()

    def decided(self, host: ShardHost[TransactionShard]) -> None:
        """Carries out the decisions in the shard's newly committed records, after the answers to their requests are sent."""
        asyncio.get_running_loop().call_soon(self._begin, host)

    def _begin(self, host: ShardHost[TransactionShard]) -> None:
        try:
            prepared = host.look(lambda shard: shard.prepared())
        except LogError:
            return  # the shard is being loaded again, or another node leads its partition
        self._start(host, deque(prepared))

    def _start(self, host: ShardHost[TransactionShard], prepared: deque[Markers]) -> None:
        """Starts the writers of a few transactions in each turn of the loop, because there may be thousands after a load."""
        if self._is_closed:
            return
        try:
            host.look(lambda _: None)
        except LogError:
            return  # as in `_begin`: a stale task must not replace the next coordinator's
        for _ in range(min(MARKERS_A_TURN, len(prepared))):
            markers = prepared.popleft()
            name = markers.transactional_id
            before = self._writing.get(name)
            if before is not None:
                if before[0] is host and before[1] == markers:
                    continue
                before[2].cancel()  # its decision is older, or its coordinator was lost
            task = asyncio.get_running_loop().create_task(self._complete(host, markers), name=f"markers of {name}")
            self._writing[name] = (host, markers, task)
            task.add_done_callback(partial(self._ended, name))
        if prepared:
            asyncio.get_running_loop().call_soon(self._start, host, prepared)

    def _ended(self, name: str, done: asyncio.Task[None]) -> None:
        found = self._writing.get(name)
        if found is not None and found[2] is done:
            del self._writing[name]

    async def _complete(self, host: ShardHost[TransactionShard], markers: Markers) -> None:
        wanted, backoff = list(markers.partitions), self._backoff()
        try:
            while wanted:
                wanted = await self._write(wanted, markers, self._epoch_of(host.partition))
                if wanted:
                    await self._clock.sleep(backoff.next_delay())
                    host.look(lambda _: None)
            is_logged = False
            while (error := self._refused_completion(host, markers)) is not None:
                if isinstance(error, CoordinatorRecordTooLarge) and not is_logged:
                    is_logged = True
                    events.warning(
                        log,
                        "transaction.not_completed",
                        transactional_id=markers.transactional_id,
                        producer_id=markers.producer.id,
                        error=error,
                    )
                await self._clock.sleep(backoff.next_delay())
        except TransactionCoordinatorFenced as error:
            _say_refused(markers, error)
        except LogError:
            return  # the coordinator is gone; the next one writes the markers again

    def _refused_completion(self, host: ShardHost[TransactionShard], markers: Markers) -> LogError | None:
        """Records the completion. Returns the error if that is not possible yet, because the disk is full or the record is too
        large. Raises LogError if the coordinator is gone."""
        host.look(lambda _: None)
        try:
            host.change(lambda shard, now_ms: shard.completed(markers, now_ms))
        except LogError as error:
            host.look(lambda _: None)
            return as_value(error)
        return None

    async def _write(self, wanted: list[TopicPartition], markers: Markers, epoch: int) -> list[TopicPartition]:
        """Writes the markers. Returns the partitions to retry. Raises TransactionCoordinatorFenced if a partition knows a newer
        coordinator."""
        left: list[TopicPartition] = []
        waiting: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        elsewhere: dict[int, list[TopicPartition]] = {}
        async for partition in self._turns.through(wanted):
            leader = self._peers.leader_of(partition)
            if leader is not None:
                elsewhere.setdefault(leader, []).append(partition)
                continue
            try:
                done = self._append(partition, markers, epoch).committed
            except TransactionCoordinatorFenced:
                raise
            except InvalidProducerEpoch as error:
                _say_refused(markers, error)
                continue
            except LogError as error:
                if self._is_wanted(partition, error):
                    left.append(partition)
                continue
            if done is not None:
                waiting.append((partition, done))
        for partition, done in waiting:
            try:
                await asyncio.shield(done)  # a group's shard may wait for the same future
            except LogError as error:
                if self._is_wanted(partition, error):
                    left.append(partition)
        parts = (self._write_elsewhere(leader, some, markers, epoch) for leader, some in elsewhere.items())
        for refused in await asyncio.gather(*parts):
            left += refused
        return left

    async def _write_elsewhere(
        self, leader: int, partitions: list[TopicPartition], markers: Markers, epoch: int
    ) -> list[TopicPartition]:
        """Does the same as `_write` for partitions that another broker leads."""
        left: list[TopicPartition] = []
        asked = markers._replace(partitions=tuple(partitions))
        for partition, error in await self._peers.write_markers(leader, asked, epoch):
            if isinstance(error, TransactionCoordinatorFenced):
                raise error
            if isinstance(error, InvalidProducerEpoch):
                _say_refused(markers, error)
            elif self._is_wanted(partition, error):
                left.append(partition)
        return left

    async def write_once(self, markers: Markers, epoch: int) -> list[tuple[TopicPartition, LogError]]:
        """Writes a marker into each partition once. Returns the partitions without a committed marker, each with its error."""
        refused: list[tuple[TopicPartition, LogError]] = []
        waiting: list[tuple[TopicPartition, asyncio.Future[None]]] = []
        async for partition in self._turns.through(dict.fromkeys(markers.partitions)):
            try:
                done = self._append(partition, markers, epoch).committed
            except LogError as error:
                refused.append((partition, as_value(_of_partition(partition, error))))
                continue
            if done is not None:
                waiting.append((partition, done))
        for partition, done in waiting:
            try:
                await asyncio.shield(done)  # a group's shard may wait for the same future
            except LogError as error:
                refused.append((partition, as_value(_of_partition(partition, error))))
        return refused

    def _append(self, partition: TopicPartition, markers: Markers, epoch: int) -> Appended:
        found = self._partitions.get(partition)
        self._admit()
        if partition.topic != CONSUMER_OFFSETS:
            return found.append_marker(markers, epoch)
        return self._groups.host(partition.partition).end_transaction(
            lambda: found.append_marker(markers, epoch), markers.producer.id, commit=markers.commit
        )

    def _is_wanted(self, partition: TopicPartition, error: LogError) -> bool:
        """Whether the partition still needs a marker. Only a deleted partition needs none."""
        return not isinstance(error, UnknownTopicOrPartition) or self._existing.has(*partition)

    async def close(self) -> None:
        self._is_closed = True
        tasks = {task for *_, task in self._writing.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _say_refused(markers: Markers, error: LogError) -> None:
    events.warning(
        log,
        "transaction.marker_refused",
        transactional_id=markers.transactional_id,
        producer_id=markers.producer.id,
        error=error,
    )


def _of_partition(partition: TopicPartition, error: LogError) -> LogError:
    """Turns a coordinator's error into NotLeader: clients that write markers look for the partition's leader."""
    if isinstance(error, CoordinatorLoading | CoordinatorNotAvailable | NotCoordinator):
        return NotLeader(f"{partition}: {error}")
    return error
