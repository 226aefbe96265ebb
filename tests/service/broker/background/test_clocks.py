"""A wall clock that is changed while the node runs: no work stops, and nothing expires early."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.broker.background.expiry_clock import ExpiryClock
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, manifest_of, running, until
from tests.support.faulty_store import FaultyStore

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
T0 = TopicPartition("t", 0)


class SetClock(SystemClock):
    """Its wall clock is `step_ms` ahead of the real one."""

    step_ms = 0

    def unix_ms(self) -> int:
        return super().unix_ms() + self.step_ms


def batch_of_now(clock: SystemClock, *values: bytes, timestamp: int | None = None) -> bytes:
    stamp = clock.unix_ms() if timestamp is None else timestamp
    return build_batch([NewRecord(b"k", value, timestamp=stamp) for value in values])


async def test_offloading_by_age_continues_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = SetClock()
    async with running(tmp_path / "data", clock=clock) as node:
        await node.create("t", configs={"tidelog.tier.max.lag.ms": "300"})
        clock.step_ms = -HOUR_MS
        await node.append_batch("t", batch_of_now(clock, b"a"))
        clock.step_ms = -2 * HOUR_MS
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.log.tiered_end == 1)


async def test_flushing_by_age_continues_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = SetClock()
    async with running(tmp_path / "data", clock=clock) as node:
        await node.create("t", configs={"flush.ms": "300"})
        await node.append_batch("t", batch_of_now(clock, b"a"))
        clock.step_ms = -2 * HOUR_MS
        hot = node.node.broker.partitions.get(T0).log.hot
        await until(lambda: hot.recovery_point == 1)


@pytest.mark.parametrize("timestamps", ["records", "none"])
async def test_nothing_expires_when_the_clock_jumps_ahead(tmp_path: Path, timestamps: str) -> None:
    clock = SetClock()
    async with running(tmp_path / "data", broker={"log.retention.check.interval.ms": "50"}, clock=clock) as node:
        await node.create("t", configs={"retention.ms": str(24 * HOUR_MS), "internal.segment.bytes": "2000"})
        stamp = None if timestamps == "records" else -1
        for _ in range(40):
            await node.append_batch("t", batch_of_now(clock, b"x" * 150, timestamp=stamp))
        await node.seal("t")
        led = node.node.broker.partitions.get(T0)
        clock.step_ms = YEAR_MS
        await until(lambda: node.node.work.expiry.step_ms > 0)
        await node.node.broker.retention.tick()
        assert led.log.log_start_offset == 0
        clock.step_ms = 0
        await until(lambda: node.node.work.expiry.step_ms == 0)


async def test_nothing_is_evicted_by_age_when_the_clock_jumps_ahead(tmp_path: Path) -> None:
    clock = SetClock()
    async with running(tmp_path / "data", clock=clock) as node:
        await node.create("t", configs={"local.retention.ms": str(HOUR_MS), "internal.segment.bytes": "2000"})
        for _ in range(40):
            await node.append_batch("t", batch_of_now(clock, b"x" * 150))
        await node.seal("t")
        led = node.node.broker.partitions.get(T0)
        clock.step_ms = YEAR_MS
        node.node.work.tiering.kick(led)
        await until(lambda: led not in node.node.work.tiering._local_retention)
        assert led.log.hot.local_start_offset == 0


async def test_a_step_that_lasts_becomes_the_expiry_time(tmp_path: Path) -> None:
    clock = SetClock()
    broker = {"log.retention.check.interval.ms": "50", "tidelog.clock.step.settle.ms": "1500"}
    async with running(tmp_path / "data", FaultyStore(MemoryStore(clock)), broker=broker, clock=clock) as node:
        await node.create("t", configs={"retention.ms": str(24 * HOUR_MS), "internal.segment.bytes": "2000"})
        for _ in range(40):
            await node.append_batch("t", batch_of_now(clock, b"x" * 150))
        led = node.node.broker.partitions.get(T0)
        clock.step_ms = YEAR_MS
        await until(lambda: led.log.log_start_offset == 40)


async def test_no_grace_passes_because_the_clock_jumps_ahead(tmp_path: Path) -> None:
    clock = SetClock()
    broker = {"tidelog.tier.delete.grace.ms": str(HOUR_MS)}
    async with running(tmp_path / "data", FaultyStore(MemoryStore(clock)), broker=broker, clock=clock) as node:
        await node.create("t", configs={"internal.segment.bytes": "2000"})
        for _ in range(40):
            await node.append_batch("t", batch_of_now(clock, b"x" * 150))
        await node.seal("t")
        await node.log.delete_records(T0, -1)
        await node.node.broker.retention.tick()
        led = node.node.broker.partitions.get(T0)
        assert (await manifest_of(led)).removed
        stored = {info.key async for info in node.store.list("") if "/segments/" in info.key}
        clock.step_ms = YEAR_MS
        await node.node.broker.sweeping.tick()
        await node.node.work.topic_files.sweep()
        assert {info.key async for info in node.store.list("") if "/segments/" in info.key} == stored
        clock.step_ms = 0
        await node.node.broker.sweeping.tick()


ELSEWHERE = "s3://bucket/logs"


async def expiring(node: Running, clock: SystemClock) -> None:
    await node.create("t", configs={"retention.ms": str(24 * HOUR_MS), "internal.segment.bytes": "2000"})
    for _ in range(40):
        await node.append_batch("t", batch_of_now(clock, b"x" * 150))
    await node.seal("t")


async def test_nothing_expires_by_a_clock_that_was_wrong_at_the_start(tmp_path: Path) -> None:
    true = SystemClock()
    clock = SetClock()
    clock.step_ms = YEAR_MS
    store = FaultyStore(MemoryStore(true))
    async with running(tmp_path / "data", store, clock=clock, store_url=ELSEWHERE) as node:
        await until(lambda: node.node.work.expiry.step_ms > YEAR_MS - HOUR_MS)
        await expiring(node, true)
        await node.node.broker.retention.tick()
        assert node.node.broker.partitions.get(T0).log.log_start_offset == 0
        clock.step_ms = 0
        await until(lambda: node.node.work.expiry.step_ms == 0)


async def test_a_step_confirmed_by_the_stores_clock_is_trusted_at_once(tmp_path: Path) -> None:
    clock = SetClock()
    broker = {"log.retention.check.interval.ms": "50"}
    store = FaultyStore(MemoryStore(clock))
    async with running(tmp_path / "data", store, broker=broker, clock=clock, store_url=ELSEWHERE) as node:
        await expiring(node, clock)
        clock.step_ms = YEAR_MS  # the store's clock steps with it
        await until(lambda: node.node.work.expiry.step_ms > 0)
        await node.node.work.expiry.compare()
        assert node.node.work.expiry.step_ms == 0
        await until(lambda: node.node.broker.partitions.get(T0).log.log_start_offset == 40)


async def test_a_store_on_this_machine_confirms_nothing(tmp_path: Path) -> None:
    clock = SetClock()
    store = FaultyStore(MemoryStore(clock))
    here = "http://127.0.0.1:9000"
    async with running(tmp_path / "data", store, clock=clock, store_url=ELSEWHERE, s3_endpoint=here) as node:
        clock.step_ms = YEAR_MS
        await until(lambda: node.node.work.expiry.step_ms > 0)
        await node.node.work.expiry.compare()
        assert node.node.work.expiry.step_ms > 0


async def test_a_store_without_a_clock_confirms_no_step() -> None:
    async def no_date() -> int:
        return 0

    expiry = ExpiryClock(SystemClock(), tolerance_ms=60_000, settle_ms=HOUR_MS, store_ms=no_date)
    await expiry.compare()
    await expiry.tick()
    assert expiry.step_ms == 0
    assert abs(expiry.now().expiry_ms - SystemClock().unix_ms()) < 60_000
