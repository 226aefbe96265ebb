"""The contract's `Transactions` for a memory core: the real service and shards, whose markers are written at once."""

from __future__ import annotations

import asyncio
import itertools

from grpc_api.contract.transactions import Markers
from service.broker.api.transaction_service import TransactionService
from service.broker.coordinators.ports import KnownTopics
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.kafka_gateway.memory_groups import PARTITIONS, MemoryCoordinatorLog, MemoryGroupTopic

TOPIC = "__transaction_state"


class MemoryMarkers:
    def __init__(self, topics: KnownTopics) -> None:
        self._topics = topics
        self.asked: list[Markers] = []

    async def write_once(self, markers: Markers, epoch: int) -> list[tuple[TopicPartition, LogError]]:
        self.asked.append(markers)
        refused: list[tuple[TopicPartition, LogError]] = []
        for each in markers.partitions:
            if not self._topics.has(*each):
                refused.append((each, UnknownTopicOrPartition(f"{each} does not exist")))
            await asyncio.sleep(0)
        return refused


def _decided(host: ShardHost[TransactionShard]) -> None:
    asyncio.get_running_loop().call_soon(_complete, host)


def _complete(host: ShardHost[TransactionShard]) -> None:
    for markers in host.look(lambda shard: shard.prepared()):
        host.change(lambda shard, now_ms, done=markers: shard.completed(done, now_ms))  # type: ignore[misc]


def memory_transactions(topics: KnownTopics, writes: TurnWrites) -> TransactionService:
    """Builds the service on the running loop."""
    runtime = CoordinatorRuntime(
        TOPIC,
        lambda: TransactionShard(TransactionSettings()),
        clock=SystemClock(),
        scheduler=TurnScheduler(),
        backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
        writes=writes,
        after=_decided,
    )
    for number in range(PARTITIONS):
        runtime.gained(number, MemoryCoordinatorLog())
    ids = itertools.count(1000)

    async def next_id() -> int:
        return next(ids)

    return TransactionService(
        runtime,
        MemoryGroupTopic(),
        MemoryGroupTopic(),
        topics,
        next_id,
        MemoryMarkers(topics),
        clock=SystemClock(),
        scheduler=TurnScheduler(),
    )
