"""Coordinators whose log refuses records, waits for the store, or is given up while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import NotCoordinator
from grpc_api.contract.groups import Heartbeat
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.partition.partition import Partition
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import StorageError
from storage_tiers.turns import AT_WORK, TurnScheduler
from storage_tiers.types import FileSlice, TopicPartition
from tests.service.broker.support import running, until
from tests.service.coordination.test_runtime_log import (
    MemoryLog,
    RestlessScheduler,
    commit,
    end,
    hosted,
    recorded,
    shard,
)

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
AT = TopicPartition("offsets", 0)


class PauseClock(SystemClock):
    """A clock whose pauses take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


async def refused(host: ShardHost[Any], log: MemoryLog) -> None:
    log.refusal = StorageError("the disk refuses")
    with pytest.raises(NotCoordinator):
        await commit(host, 1)
    await until(lambda: host.state is ShardState.ACTIVE)


async def test_a_disk_that_refuses_every_write_has_the_log_read_ever_more_seldom() -> None:
    log, clock = MemoryLog(), PauseClock()
    host = ShardHost(
        AT,
        log,
        shard,
        clock=clock,
        scheduler=TurnScheduler(),
        backoff=lambda: Backoff(BackoffSettings(1, 64), SystemRng()),
        writes=TurnWrites(),
    )
    await until(lambda: host.state is ShardState.ACTIVE)
    assert clock.pauses == []
    for _ in range(4):
        await refused(host, log)
    first, second, third, fourth = clock.pauses
    assert first <= 1 <= second <= 2 <= third <= 4 <= fourth
    log.refusal = None
    await commit(host, 1)
    await refused(host, log)
    assert clock.pauses[-1] <= 1, "a write has succeeded since"
    await end(host)


async def test_a_partition_whose_disk_has_failed_keeps_its_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("offsets")
        partition = node.node.broker.partitions.get(AT)
        backoff = BackoffSettings(0.01, 0.02)
        host = ShardHost(
            AT,
            PartitionLog(partition),
            shard,
            clock=SystemClock(),
            scheduler=TurnScheduler(),
            backoff=lambda: Backoff(backoff, SystemRng()),
            writes=TurnWrites(),
        )
        await until(lambda: host.state is ShardState.ACTIVE)
        await commit(host, 5)
        before = host._shard
        partition.fail(StorageError("fsync failed"))
        for _ in range(3):
            with pytest.raises(NotCoordinator, match="fsync failed"):
                await commit(host, 6)
            await host.ask(Heartbeat("g", 1, "m", None), CALLER)
        assert host._shard is before
        await end(host)


# --- loading ----------------------------------------------------------------------------------------------------------
class StuckLog(MemoryLog):
    """A log whose reads wait for the store after the first batch."""

    def __init__(self, *batches: bytes) -> None:
        super().__init__(*batches)
        self.is_stuck = False

    async def read(self, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        async for piece in super().read(before_wait):
            yield piece
        before_wait()
        self.is_stuck = True
        await asyncio.Event().wait()


async def test_loads_that_wait_for_the_store_hold_up_no_other() -> None:
    scheduler, batch = RestlessScheduler(), await recorded(in_transaction=False)
    stuck = [StuckLog(batch) for _ in range(AT_WORK)]
    waiting = [hosted(log, scheduler) for log in stuck]
    await until(lambda: all(log.is_stuck for log in stuck))
    other = hosted(MemoryLog(batch), scheduler)
    await until(lambda: other.state is ShardState.ACTIVE)
    for host in (*waiting, other):
        await end(host)


async def test_a_log_says_that_it_waits_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("offsets")
        await node.append("offsets", b"a")
        partition = node.node.broker.partitions.get(AT)
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits: list[bool] = []
        read = Partition.read

        def once_missing(self: Partition, *args: Any, **more: Any) -> list[FileSlice] | ColdMiss:
            return read(self, *args, **more) if come.done() else ColdMiss(come)

        def before_wait() -> None:
            waits.append(come.done())
            come.set_result(None)

        monkeypatch.setattr(Partition, "read", once_missing)
        pieces = [piece async for piece in PartitionLog(partition).read(before_wait)]
        assert (waits, len(pieces)) == ([False], 1)


async def test_a_load_that_is_cancelled_before_its_thread_begins_releases_the_files(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("offsets")
        await node.append("offsets", b"a")
        partition = node.node.broker.partitions.get(AT)
        file = partition.log.hot._segments.newest.file()
        before, go_on = file.users, Event()
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as busy:
            loop.set_default_executor(busy)
            blocking = loop.run_in_executor(None, go_on.wait)
            reading = asyncio.ensure_future(anext(PartitionLog(partition).read()))
            await until(lambda: file.users > before)
            reading.cancel()
            await asyncio.wait({reading})
            go_on.set()
            await blocking
            await until(lambda: file.users == before)
            loop.set_default_executor(ThreadPoolExecutor(2))
