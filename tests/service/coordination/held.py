"""Coordinators over a partition of a real node whose flushes a test may hold back: `flush.messages` of 1 holds every commit
until the flush is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    JoinGroup,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    PartitionCommit,
    TopicCommit,
)
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.partition.partition import Partition
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.group_offsets import OffsetSettings
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running, until
from tests.service.coordination.whole_values import finish
from tests.support.clock import SeededRng

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
TOPIC = "__consumer_offsets"
HELD = {"flush.messages": "1"}


class Held:
    """A node whose flushes of the coordinator's partition wait until `release`."""

    def __init__(self, node: Running, runtime: CoordinatorRuntime[GroupShard], writes: TurnWrites) -> None:
        self.node = node
        self.runtime = runtime
        self.writes = writes

    @property
    def partition(self) -> Partition:
        return self.node.node.broker.partitions.get(TopicPartition("offsets", 0))

    @property
    def host(self) -> ShardHost[GroupShard]:
        return self.runtime.host(0)

    def commit(self, offset: int, group: str = "g") -> asyncio.Future[Any]:
        topics = [TopicCommit("t", [PartitionCommit(0, offset)])]
        return self.host.ask(OffsetCommit(group, -1, "", None, topics), CALLER)

    def fetched(self, group: str = "g") -> list[int]:
        found = finish(self.host.look(lambda shard: shard.fetch_offsets(OffsetFetch(group, None))))
        return [each.offset for topic in found.topics for each in topic.partitions]

    def listed(self) -> list[str]:
        return sorted(each.group for each in chain(*self.host.look(lambda shard: list(shard.list(ListGroups())))))

    async def loaded(self) -> None:
        await until(lambda: self.host.state is ShardState.ACTIVE)

    async def reload(self) -> None:
        """Gains the partition again, and waits until the shard is loaded."""
        self.runtime.gained(0, PartitionLog(self.partition))
        await self.loaded()


@asynccontextmanager
async def coordinated(
    directory: Path, monkeypatch: pytest.MonkeyPatch, configs: dict[str, str] | None = None
) -> AsyncIterator[Held]:
    clock = SystemClock()
    async with running(directory) as node:
        await node.create("offsets", configs=configs or {})

        def shard() -> GroupShard:
            return GroupShard(
                SeededRng(1), GroupSettings(min_session_timeout_ms=1, initial_rebalance_delay_ms=0), OffsetSettings()
            )

        writes = TurnWrites()
        runtime = CoordinatorRuntime(
            TOPIC,
            shard,
            clock=clock,
            scheduler=TurnScheduler(),
            backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
            writes=writes,
        )
        held = Held(node, runtime, writes)
        if configs == HELD:
            # The node's flusher does not run: a test says when all is on disk.
            monkeypatch.setattr(held.partition, "_on_flush_needed", lambda _: None)
        runtime.gained(0, PartitionLog(held.partition))
        await held.loaded()
        try:
            yield held
        finally:
            await runtime.close()


def release(held: Held) -> None:
    held.partition.flushed(held.partition.log.end_offset)


async def turn() -> None:
    """One turn of the loop, in which planned batches are written."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def join_request(*, needs_member_id: bool, session: int = 10_000) -> JoinGroup:
    return JoinGroup("g", "", None, "consumer", [MemberProtocol("range", b"")], session, 60_000, needs_member_id)
