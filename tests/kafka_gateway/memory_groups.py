"""The contract's `Groups` for a memory core: the real service and shards over logs that live in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping

from grpc_api.contract.groups import LowerOffsets, TxnOffsetCommit
from grpc_api.contract.log import Appended
from service.broker.api.group_service import GroupService
from service.broker.coordinators.ports import KnownTopics
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.coordination.coordinator_runtime import CoordinatorRuntime, partition_of
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.ports import PLAIN
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import LogError
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicId, TopicPartition

TOPIC = "__consumer_offsets"
PARTITIONS = 3


class MemoryCoordinatorLog:
    max_batch_bytes = 1 << 20
    writing = PLAIN
    no_room: LogError | None = None
    #: Every record counts as committed.
    high_watermark = 1 << 62

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    def append(self, batch: bytes) -> Appended:
        self.batches.append(batch)
        return Appended(len(self.batches) - 1, 0, -1, 0, None)

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        """Every producer may write."""

    def until_committed(self, end: int) -> None:
        """Returns at once: every record counts as committed."""

    async def read(self, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        for batch in tuple(self.batches):
            yield batch


class MemoryGroupTopic:
    """Broker 1 coordinates every key."""

    def partition_of(self, key: str) -> int | None:
        return partition_of(key, PARTITIONS)

    async def coordinator(self, key: str) -> int:
        return 1


class NoTransactions:
    """Every transaction may begin."""

    async def enter(self, at: TopicPartition, commit: TxnOffsetCommit) -> None:
        pass


class MemoryTopics:
    """The topics of a memory core, read from its tables."""

    def __init__(self, partitions: Mapping[TopicPartition, object], ids: Mapping[str, TopicId]) -> None:
        self._partitions = partitions
        self._ids = ids

    def has(self, topic: str, partition: int) -> bool:
        return TopicPartition(topic, partition) in self._partitions

    def partitions_of(self, topic: str) -> int:
        return sum(1 for each in self._partitions if each.topic == topic)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, known in self._ids.items() if known == topic_id), None)

    def id_of(self, topic: str) -> TopicId | None:
        return self._ids.get(topic)


def memory_groups(topics: KnownTopics, writes: TurnWrites) -> GroupService:
    """Builds the service on the running loop."""

    def shard() -> GroupShard:
        return GroupShard(SystemRng(), GroupSettings(initial_rebalance_delay_ms=0), OffsetSettings())

    runtime = CoordinatorRuntime(
        TOPIC,
        shard,
        clock=SystemClock(),
        scheduler=TurnScheduler(),
        backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
        writes=writes,
    )
    for number in range(PARTITIONS):
        runtime.gained(number, MemoryCoordinatorLog())
    lowering = RecoveredOffsets(runtime, (), TurnScheduler(), lambda _: True, _nothing, NoOthers())
    return GroupService(runtime, MemoryGroupTopic(), topics, NoTransactions(), TurnScheduler(), lowering)


class NoOthers:
    """A node that has all coordinators."""

    def numbers(self) -> Collection[int]:
        return range(PARTITIONS)

    def elsewhere(self) -> Mapping[int, int]:
        return {}

    async def lower(self, broker_id: int, request: LowerOffsets) -> Collection[int]:
        return ()


async def _nothing() -> None:
    """Stands for a checkpoint: no partition keeps notes."""
