"""A transaction shard on a partition of a real node whose flushes are held back: what its clients and markers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from grpc_api.contract.transactions import AddPartitions, EndTransaction, InitProducer
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.partition.partition import Partition
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import running, until
from tests.service.coordination.held import CALLER, HELD, turn
from tests.service.coordination.transactions.driver import A

DECISIONS = TopicPartition("decisions", 0)


class Decisions(NamedTuple):
    """A coordinator, and the partition of its records, which commits them when a test says so."""

    host: ShardHost[TransactionShard]
    partition: Partition

    def release(self) -> None:
        self.partition.flushed(self.partition.log.end_offset)


@asynccontextmanager
async def coordinating(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Decisions]:
    async with running(directory) as node:
        await node.create(DECISIONS.topic, configs=HELD)
        partition = node.node.broker.partitions.get(DECISIONS)
        monkeypatch.setattr(partition, "_on_flush_needed", lambda _: None)
        runtime = CoordinatorRuntime(
            DECISIONS.topic,
            lambda: TransactionShard(TransactionSettings()),
            clock=SystemClock(),
            scheduler=TurnScheduler(),
            backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
            writes=TurnWrites(),
        )
        runtime.gained(0, PartitionLog(partition))
        await until(lambda: runtime.host(0).state is ShardState.ACTIVE)
        try:
            yield Decisions(runtime.host(0), partition)
        finally:
            await runtime.close()


async def test_an_end_is_answered_and_marked_once_its_decision_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinating(tmp_path, monkeypatch) as decisions:
        host = decisions.host
        begun = host.ask(InitProducer("x", 60_000, spare_producer_id=7), CALLER)
        await turn()
        decisions.release()
        producer = (await begun).producer
        added = host.ask(AddPartitions("x", producer, (A,), client_version=2), CALLER)
        await turn()
        decisions.release()
        assert (await added).error is None

        ended = host.ask(EndTransaction("x", producer, commit=True, client_version=2), CALLER)
        await turn()
        assert decisions.partition.log.end_offset == 3  # PREPARE_COMMIT is written
        assert not ended.done()
        assert host.look(lambda shard: shard.prepared()) == []
        assert host.look(lambda shard: shard.describe("x").state) == "Ongoing"
        decisions.release()
        async with asyncio.timeout(60):
            assert (await ended).producer == (7, 1)
        assert [markers.commit for markers in host.look(lambda shard: shard.prepared())] == [True]
