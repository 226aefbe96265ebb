"""The contract's `Transactions`: sends each request to the shard of its transactional id, if this broker coordinates it.

Partitions are looked up here, before a shard sees them, and producer ids are reserved here, because a shard does not know the
cluster and never waits. `transaction_markers.py` writes the markers of decided transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator, OperationNotAttempted
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    AddOffsets,
    AddPartitions,
    DescribedTransaction,
    EndTransaction,
    InitProducer,
    ListTransactions,
    Markers,
    PartitionsAdded,
    ProducerInitialized,
    TransactionEnded,
    TransactionsListed,
)
from service.broker.coordinators.listing import listed
from service.broker.coordinators.ports import CoordinatorTopic, KnownTopics
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import LAST_EPOCH, TransactionEvent
from service.metadata.internal_topics import CONSUMER_OFFSETS, INTERNAL_TOPICS
from storage_tiers.clock import Clock
from storage_tiers.errors import InvalidRequest, LogError, TopicUnauthorized, UnknownTopicOrPartition, as_value
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition

#: Partitions that are looked up in one turn of the event loop.
CHECKED = 500


class WritesMarkers(Protocol):
    """Writes markers into partitions of this node (`TransactionMarkers`)."""

    async def write_once(self, markers: Markers, epoch: int) -> list[tuple[TopicPartition, LogError]]: ...


class TransactionService:
    """`next_id` reserves a producer id that was never issued."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionShard],
        topic: CoordinatorTopic,
        offsets_topic: CoordinatorTopic,
        topics: KnownTopics,
        next_id: Callable[[], Awaitable[int]],
        markers: WritesMarkers,
        *,
        clock: Clock,
        scheduler: TurnScheduler,
    ) -> None:
        self._scheduler = scheduler
        self._runtime = runtime
        self._topic = topic
        self._offsets_topic = offsets_topic
        self._topics = topics
        self._next_id = next_id
        self._markers = markers
        self._clock = clock

    async def coordinator(self, transactional_id: str, caller: Caller) -> int:
        return await self._topic.coordinator(transactional_id)

    # --- producers ----------------------------------------------------------------------------------------------------
    async def init_producer(self, request: InitProducer, caller: Caller) -> ProducerInitialized:
        self._host(request.transactional_id)  # raises if another broker is the coordinator, before an id is spent
        asked = request._replace(spare_producer_id=await self._next_id())
        answer: ProducerInitialized = await self._ask(asked, caller)
        return answer

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        """Refuses internal topics in clients' requests. Brokers may add the internal topic to which offsets are committed:
        their requests have version EPOCH_PER_TRANSACTION or only verify."""
        checks = self._refused(request)
        try:
            next(checks)
        except StopIteration as checked:
            return self._ask(request, caller) if checked.value is None else _answered(checked.value)
        return asyncio.ensure_future(self._add_many(request, checks, caller))

    async def _add_many(
        self, request: AddPartitions, checks: Generator[None, None, PartitionsAdded | None], caller: Caller
    ) -> PartitionsAdded:
        """Continues a request of many partitions, and checks them in slices of the event loop's time."""
        turn = self._scheduler.turn()
        try:
            await turn.begin()
            refused = await turn.through(checks)
        finally:
            turn.leave()
        if refused is not None:
            return refused
        answer: PartitionsAdded = await self._ask(request, caller)
        return answer

    def _refused(self, request: AddPartitions) -> Generator[None, None, PartitionsAdded | None]:
        """Returns the answer if one of the partitions cannot be added, else None. Yields after every CHECKED partitions."""
        is_client = request.client_version < EPOCH_PER_TRANSACTION and not request.verify_only
        refusals: dict[TopicPartition, LogError] = {}
        for number, each in enumerate(request.partitions, 1):
            if is_client and each.topic in INTERNAL_TOPICS:
                refusals[each] = TopicUnauthorized(
                    f"{each.topic} is an internal topic and accepts no records from clients"
                )
            elif not self._topics.has(*each):
                refusals[each] = UnknownTopicOrPartition(f"{each} does not exist")
            if not number % CHECKED:
                yield
        if not refusals:
            return None
        rows = []
        for number, each in enumerate(request.partitions, 1):
            rows.append((each, refusals.get(each) or _not_added(each)))
            if not number % CHECKED:
                yield
        return PartitionsAdded(None, rows)

    async def add_offsets(self, request: AddOffsets, caller: Caller) -> PartitionsAdded:
        partition = self._offsets_topic.partition_of(request.group)
        if partition is None:
            await self._offsets_topic.coordinator(request.group)  # raises, and starts the topic's creation
            raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS} is being created; retry")
        event = AddPartitions(
            request.transactional_id,
            request.producer,
            (TopicPartition(CONSUMER_OFFSETS, partition),),
            client_version=request.client_version,
        )
        answer: PartitionsAdded = await self._ask(event, caller)
        return answer

    def end(self, request: EndTransaction, caller: Caller) -> asyncio.Future[TransactionEnded]:
        if request.client_version >= EPOCH_PER_TRANSACTION and request.producer.epoch >= LAST_EPOCH:
            return asyncio.ensure_future(self._end_with_new_id(request, caller))
        return self._ask(request, caller)

    async def _end_with_new_id(self, request: EndTransaction, caller: Caller) -> TransactionEnded:
        """Ends a transaction whose producer id has no epoch left. The next transaction begins under another id."""
        asked = request._replace(spare_producer_id=await self._next_id())
        answer: TransactionEnded = await self._ask(asked, caller)
        return answer

    async def write_markers(
        self, markers: Markers, coordinator_epoch: int, caller: Caller
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        return await self._markers.write_once(markers, coordinator_epoch)

    # --- administration -----------------------------------------------------------------------------------------------
    async def list(self, request: ListTransactions, caller: Caller) -> TransactionsListed:
        now_ms, turn = self._clock.steady_ms(), self._scheduler.turn()
        try:
            return TransactionsListed(*await listed(self._runtime, lambda shard: shard.list(request, now_ms), turn))
        finally:
            turn.leave()

    def describe(self, transactional_id: str, caller: Caller) -> asyncio.Future[DescribedTransaction]:
        try:
            return _answered(self._host(transactional_id).look(lambda shard: shard.describe(transactional_id)))
        except LogError as error:
            return _failed(error)

    # --- shards -------------------------------------------------------------------------------------------------------
    def _host(self, transactional_id: str) -> ShardHost[TransactionShard]:
        if not transactional_id:
            raise InvalidRequest(
                "the transactional id is empty"
            )  # not NotCoordinator: a retry elsewhere would not help
        partition = self._topic.partition_of(transactional_id)
        if partition is None:
            raise NotCoordinator("this cluster has no transaction coordinator yet; find the coordinator again")
        return self._runtime.host(partition)

    def _ask(self, event: TransactionEvent, caller: Caller) -> asyncio.Future[Any]:
        try:
            return self._host(event.transactional_id).ask(event, caller)
        except LogError as error:
            return _failed(error)


def _not_added(partition: TopicPartition) -> LogError:
    return OperationNotAttempted(f"{partition} was not added, because another partition of the request is refused")


def _answered(answer: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def _failed(error: LogError) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(as_value(error))
    return future
