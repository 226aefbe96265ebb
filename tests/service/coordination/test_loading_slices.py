"""Loading takes at most a slice of each turn of the loop, whatever the records are. The clock counts calls of functions, a
microsecond each, so that the outcome depends on no machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import NotCoordinator
from service.coordination.commit_fields import encode_offset_key
from service.coordination.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    encode_key,
    encode_offset,
)
from service.coordination.outcome import CoordinatorRecord
from service.coordination.record_batches import encode_batch, in_batches
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.transaction_records import (
    TopicPartitions,
    TransactionStatus,
    TransactionValue,
    encode_value,
)
from service.coordination.transaction_records import encode_key as encode_id
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.records.builder import ControlKind
from storage_tiers.turns import SLICE_S, TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.coordination.test_runtime_log import MemoryLog, marker, shard
from tests.service.coordination.whole_values import encode_group

CALL_S = 0.000_001
#: Calls that may follow the end of a slice, for the records between two looks at the clock.
SLACK = 700


class CountingScheduler(TurnScheduler):
    """`stretches` holds the numbers of calls between two rests."""

    def __init__(self) -> None:
        super().__init__(lambda: self.calls * CALL_S)
        self.calls = self._since = 0
        self.stretches: list[int] = []

    def count(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    async def rest(self) -> None:
        self.mark()
        await super().rest()
        self._since = self.calls

    def mark(self) -> None:
        self.stretches.append(self.calls - self._since)


def group(name: str, members: int) -> CoordinatorRecord:
    found = [
        MemberMetadata(f"{name}-{number}", None, "app", "/127.0.0.1", 60_000, 60_000, b"s" * 100, b"a" * 100)
        for number in range(members)
    ]
    return CoordinatorRecord(
        encode_key(GroupKey(name)),
        encode_group(GroupMetadata("consumer", 1, "range", found[0].member_id, 1, tuple(found))),
    )


def offset(name: str, partition: int = 0) -> CoordinatorRecord:
    return CoordinatorRecord(encode_offset_key(name, "t", partition), encode_offset(CommittedOffset(5, -1, "", 1)))


def transaction(name: str, topics: int, partitions: int) -> CoordinatorRecord:
    added = tuple(TopicPartitions(f"topic-{number}", tuple(range(partitions))) for number in range(topics))
    value = TransactionValue(1, 0, 60_000, TransactionStatus.ONGOING, added, 1, 1)
    return CoordinatorRecord(encode_id(name), encode_value(value))


def batches(records: Iterable[CoordinatorRecord]) -> list[bytes]:
    return [encode_batch(some, 1, None) for some in in_batches(list(records), 1 << 20)]


def transactions() -> TransactionShard:
    return TransactionShard(TransactionSettings())


@pytest.mark.parametrize(
    ("log", "new"),
    [
        (batches([group("g", 2_000)]), shard),
        (batches(group(f"g{number}", 10) for number in range(128)), shard),
        (batches(group(f"g{number}", 1) for number in range(1_000)), shard),
        (batches(offset(f"g{number}") for number in range(3_000)), shard),
        (batches(offset("g", number) for number in range(3_000)), shard),
        ([marker(ControlKind.COMMIT)] * 1_000, shard),
        (batches(transaction(f"x{number}", 1, 1) for number in range(3_000)), transactions),
        (batches([transaction("x", 3_000, 1), transaction("y", 1, 20_000)]), transactions),
    ],
    ids=[
        *("one group of many members", "groups of some members", "groups", "offsets without groups", "offsets"),
        *("markers", "transactional ids", "transactions of many partitions"),
    ],
)
async def test_no_slice_of_a_load_is_longer_than_two_milliseconds(log: list[bytes], new: Callable[[], Any]) -> None:
    scheduler = CountingScheduler()
    host: ShardHost[Any] = ShardHost(
        TopicPartition("offsets", 0),
        MemoryLog(*log),
        new,
        clock=SystemClock(),
        scheduler=scheduler,
        writes=TurnWrites(),
        backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
    )
    sys.setprofile(scheduler.count)
    try:
        while host.state is ShardState.LOADING:
            await asyncio.sleep(0)
        scheduler.mark()
    finally:
        sys.setprofile(None)
    assert host.state is ShardState.ACTIVE
    assert len(scheduler.stretches) > 2
    assert max(scheduler.stretches) <= SLICE_S / CALL_S + SLACK
    await host.close(NotCoordinator("the test is over"))
