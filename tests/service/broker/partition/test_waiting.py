"""Every caller that waits for a partition is answered, whatever happens to the partition meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, FetchPartition
from grpc_api.contract.ready import settled
from service.broker.background.flusher import FLUSH_THREADS
from service.broker.partition.leading import reconcile
from service.broker.partition.partition import Partition
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.read.reader import ColdReader
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import LeaderNotAvailable, LogError, TierCorrupt, UnknownTopicOrPartition
from storage_tiers.types import EpochEntry, TopicPartition
from tests.service.broker.support import TIERED, Running, batch, manifest_of, running, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def unacknowledged(node: Running) -> asyncio.Future[None]:
    """The waiter of an appended record whose flush, which its topic requires, never begins."""
    node.node.broker.partitions.get(T0)._on_flush_needed = lambda _: None
    (answer,) = await settled(node.log.append([Append(T0, memoryview(batch(b"not flushed")))]))
    assert not isinstance(answer, LogError)
    assert answer.committed is not None and not answer.committed.done()
    return answer.committed


async def another_history(led: Partition, epochs: Sequence[EpochEntry]) -> None:
    """Gives the bucket's last record leader epoch 7, and its newest sidecar the epochs `epochs`."""
    manifest, cold = await manifest_of(led), led.log.cold
    assert cold is not None
    state = replace(await cold.newest_state(manifest), epochs=tuple(epochs))

    class Another(ColdReader):
        async def newest_state(self, manifest: Manifest) -> Sidecar:
            return state

    led.log.cold = Another(cold.ids, cold._hydrator, load=cold._load, reload=cold._reload)
    led.log.apply(replace(manifest, leader_epoch=7, last_record_epoch=7))


async def test_an_append_that_is_discarded_for_the_buckets_history_is_refused(node: Running) -> None:
    """The record is no longer in any log, so an acknowledgement would be false. The retried record gets its offset."""
    await node.create("t", configs={**TIERED, "flush.messages": "1"})
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    led = node.node.broker.partitions.get(T0)
    committed = await unacknowledged(node)
    reading = asyncio.ensure_future(node.read("t", 40, wait_ms=600_000))
    await another_history(led, [EpochEntry(7, 0)])
    await asyncio.wait_for(reconcile(led), 60)
    with pytest.raises(LeaderNotAvailable):
        await committed
    led._on_flush_needed = node.node.work.flusher.request
    assert (await node.append("t", b"sent again")).base_offset == 40
    assert [record.value for record in await reading] == [b"sent again"]


@pytest.mark.parametrize("meanwhile", ["a truncation", "an eviction"])
async def test_an_append_is_acknowledged_even_if_its_flush_is_superseded(node: Running, meanwhile: str) -> None:
    """A truncation voids a flush that still waits for a thread, so that flush must start again."""
    kept = {"remote.storage.enable": "false", "retention.ms": "-1"}
    await node.create("t", configs={"internal.segment.bytes": "2000", "flush.messages": "1", **kept})
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    flusher, hot = node.node.work.flusher, node.node.broker.partitions.get(T0).log.hot
    await until(lambda: not flusher._running and hot.recovery_point == hot.end_offset)
    may_go = threading.Event()
    for _ in range(FLUSH_THREADS):
        flusher._threads.submit(may_go.wait, 20)
    appends = [Append(T0, memoryview(batch(value))) for value in (b"waits", b"goes")]
    first, _ = await settled(node.log.append(appends))
    assert not isinstance(first, LogError) and first.committed is not None
    await until(lambda: hot.is_flushing)
    flusher._again.clear()  # the second append requested another flush, which would hide the loss of this one
    if meanwhile == "a truncation":
        hot.truncate_to(41)
    else:
        hot.raise_log_start(30)
        assert hot.evict_oldest(30) is not None
    may_go.set()
    await asyncio.wait_for(first.committed, 60)


async def test_a_manifest_that_its_sidecar_contradicts_discards_nothing(node: Running) -> None:
    await node.create("t", configs={**TIERED, "local.retention.bytes": "-2", "local.retention.ms": "-2"})
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    led = node.node.broker.partitions.get(T0)
    await another_history(led, [EpochEntry(3, 0)])
    with pytest.raises(TierCorrupt, match="fsck"):
        await asyncio.wait_for(reconcile(led), 60)
    assert (led.log.hot.local_start_offset, led.log.hot.end_offset) == (0, 40)
    with pytest.raises(LeaderNotAvailable):
        await node.append("t", b"too early")


async def test_an_append_whose_topic_is_deleted_is_refused(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    committed = await unacknowledged(node)
    await node.core.topics.delete(["t"])
    with pytest.raises(UnknownTopicOrPartition):
        await asyncio.wait_for(committed, 60)


@pytest.mark.parametrize("created_again", [False, True])
async def test_a_cold_read_of_a_topic_deleted_meanwhile_reports_it(node: Running, created_again: bool) -> None:
    """The read continues with the old topic's manifest, and never returns records of the new topic."""
    await node.create("t", configs=TIERED)
    for i in range(40):
        await node.append("t", b"%03d" % i * 50)
    await node.seal("t")
    await node.evicted("t")
    gate = node.store.hold(1, "get", ".log")
    wanted = FetchPartition(T0, 0, 1 << 20)
    fetching = asyncio.ensure_future(node.fetch(wanted, wait_ms=600_000))
    await gate.reached.wait()
    await node.core.topics.delete(["t"])
    if created_again:
        await node.create("t", configs={**TIERED, "remote.storage.enable": "false"})
        await node.append("t", b"new")
    objects = [info.key async for info in node.store.store.list("") if info.key.endswith(".log")]
    await node.store.store.delete(objects)  # as a sweep does after the grace
    gate.open()
    (answer,) = await asyncio.wait_for(fetching, 60)
    assert isinstance(answer.error, UnknownTopicOrPartition)
    assert not answer.slices
    assert node.node.ground.ending.fatal is None
    if created_again:
        led = node.node.broker.partitions.get(T0)
        assert led.log.tier is None
        assert [record.value for record in await node.read_all("t")] == [b"new"]
