"""The memory that transactional ids may keep on a node, and the cost of a step of their shard."""

from __future__ import annotations

from collections import OrderedDict

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from service.coordination.kept_memory import KeptMemory
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.transactions.transaction import ID_BYTES, KEPT_PARTITION_BYTES
from storage_tiers.types import TopicPartition
from tests.service.coordination.transactions.driver import DAY, Coordinator


class Bounded(Coordinator):
    """A coordinator whose ids share `memory`."""

    def __init__(self, limit_bytes: int) -> None:
        self.memory = KeptMemory(limit_bytes)
        super().__init__()

    def new_shard(self) -> TransactionShard:
        return TransactionShard(TransactionSettings(), version=lambda: self.version, memory=self.memory)


def test_new_ids_beyond_the_bound_are_refused_and_known_ones_continue() -> None:
    coordinator = Bounded(10 * ID_BYTES)
    errors = [coordinator.init(f"x{number}").error for number in range(12)]
    assert [isinstance(each, CoordinatorNotAvailable) for each in errors] == [False] * 9 + [True] * 3
    assert coordinator.init("x0").error is None
    assert coordinator.memory.used_bytes <= coordinator.memory.limit_bytes
    used = coordinator.memory.used_bytes
    coordinator.restart()
    assert coordinator.memory.used_bytes == used
    coordinator.wait(8 * DAY)
    assert coordinator.memory.used_bytes == 0
    assert coordinator.init("x11").error is None


def test_long_ids_count() -> None:
    coordinator = Bounded(100_000)
    errors = [coordinator.init(f"{number}-{'x' * 20_000}").error for number in range(10)]
    assert sum(each is None for each in errors) == 4


def test_partitions_count_while_their_transaction_is_open() -> None:
    coordinator = Bounded(2 * ID_BYTES + 100 * KEPT_PARTITION_BYTES)
    producer = coordinator.init("x").producer
    idle = coordinator.memory.used_bytes
    partitions = [TopicPartition("t", number) for number in range(90)]
    assert coordinator.add(producer, *partitions).error is None
    assert coordinator.memory.used_bytes == idle + 90 * KEPT_PARTITION_BYTES
    assert coordinator.add(producer, *partitions).error is None, "all partitions are in the transaction already"
    refused = coordinator.add(producer, *(TopicPartition("u", number) for number in range(30))).error
    assert isinstance(refused, CoordinatorNotAvailable)
    coordinator.end(producer)
    coordinator.mark()
    assert coordinator.memory.used_bytes == idle


class Order(int):
    """A number that counts how often such numbers are compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Order.compared += 1
        return int(self) < other


def test_each_decision_that_is_committed_is_looked_at_once_however_many_wait() -> None:
    shard = Coordinator().shard
    names = [f"x{number}" for number in range(1_000)]
    shard._deciding = OrderedDict((name, Order(number)) for number, name in enumerate(names))
    for written in range(len(names) + 1):
        shard.committed(written)
    assert list(shard._prepared) == names and not shard._deciding
    assert Order.compared <= 2 * len(names)
