"""The broker's core beyond its contract (`tests/conformance/test_contract.py`): restarts, timers, internals.

One node in this process, with a hot disk and a memory store behind it.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended, FetchPartition
from grpc_api.contract.ready import settled
from service.process.memory import resident_bytes, trim_heap
from storage_tiers.errors import FencedLeaderEpoch, RecordTooLarge
from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, filled, running, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def test_an_append_that_must_be_flushed_is_visible_only_afterwards(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"a")))]))
    assert isinstance(answer, Appended)
    assert answer.committed is not None
    assert node.node.broker.partitions.get(T0).state.high_watermark == 0
    await answer.committed
    assert node.node.broker.partitions.get(T0).state.high_watermark == 1
    assert node.node.broker.partitions.get(T0).log.hot.recovery_point == 1


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
async def test_a_refused_batch_keeps_no_memory(node: Running, codec: Codec) -> None:
    """This holds however rarely the garbage collector runs."""
    await node.create("t")
    bomb = memoryview(build_batch([NewRecord(None, bytes(100 << 20))], codec=codec))
    gc.collect()
    gc.disable()
    try:
        before = resident_bytes()
        for _ in range(4):
            (answer,) = await settled(node.log.append([Append(T0, bomb)]))
            assert isinstance(answer, RecordTooLarge)
        trim_heap()
        assert resident_bytes() - before < 100 << 20
    finally:
        gc.enable()


async def test_leader_epochs_rise_at_every_start_and_fence_the_old(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await node.append("t", b"a")
        store, before = node.store, node.node.broker.partitions.get(T0).state.leader_epoch
    async with running(tmp_path / "data", store) as node:
        assert node.node.broker.partitions.get(T0).state.leader_epoch == before + 1
        (answer,) = await node.fetch(FetchPartition(T0, 0, 100, current_leader_epoch=before))
        assert isinstance(answer.error, FencedLeaderEpoch)
        assert await node.log.epoch_end_offset(T0, before + 1) == (before + 1, 1)
        await node.append("t", b"b")
        assert await node.log.epoch_end_offset(T0, before) == (before, 1)
        assert [record.value for record in await node.read("t", 0)] == [b"a", b"b"]


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        await node.evicted("t")
        await node.append("t", b"tail")
        store = node.store
    async with running(tmp_path / "data", store) as node:
        found = await node.read_all("t")
        assert [record.offset for record in found] == list(range(41))


async def test_retention_removes_records_from_both_tiers(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker={"log.retention.check.interval.ms": "50"}) as node:
        await filled(node, configs={"retention.bytes": "6000"})
        await node.seal("t")
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.log.log_start_offset > 0)
        await until(lambda: led.log.tier is not None and led.log.tier.log_start == led.log.log_start_offset)
        first = led.log.log_start_offset
        assert [record.offset for record in await node.read_all("t", start=first)] == list(range(first, 40))
