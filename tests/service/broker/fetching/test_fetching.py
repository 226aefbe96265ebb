"""Fetches that wait: the events that answer them, and the end of each wait."""

from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.log import Fetch, Fetched, FetchPartition
from grpc_api.contract.ready import settled
from service.broker.fetching import fetching
from service.broker.fetching.fetching import DelayedFetch
from storage_tiers.cold.read.known_segments import KnownSegments, cost
from storage_tiers.errors import OffsetOutOfRange, StorageError, TierCorrupt
from storage_tiers.hot.reading import LogReader
from storage_tiers.types import FileSlice, TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, records, running

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def whole(partition: TopicPartition, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition, offset, 1 << 20)


async def cold(node: Running, partitions: int) -> None:
    await node.create("t", partitions, configs=TIERED)
    for partition in range(partitions):
        for i in range(10):
            await node.append("t", b"%03d" % i * 50, partition=partition)
    await node.seal("t")
    for partition in range(partitions):
        await node.evicted("t", partition)


async def test_a_cold_read_that_fails_is_answered_for_its_partition_alone(node: Running) -> None:
    await cold(node, 2)
    node.store.fail(1, "", "segments/00000/", TierCorrupt("damaged"))
    gate = node.store.hold(1, "", "segments/00001/")
    broken, waiting = await node.fetch(whole(T0), whole(T1), wait_ms=20_000)
    assert isinstance(broken.error, TierCorrupt)
    assert (waiting.error, waiting.size) == (None, 0)
    gate.open()
    assert [record.offset for record in await node.read_all("t", 1)] == list(range(10))


async def test_a_disk_that_cannot_be_read_costs_its_partition_alone(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("t", 2)
    await node.append("t", b"a", partition=1)

    await node.append("t", b"a")
    broken_disk, read = node.node.broker.partitions.get(T0).log.hot.reader, LogReader.read

    def refuse(reader: LogReader, offset: int, **limits: Any) -> list[FileSlice]:
        if reader is broken_disk:
            raise OSError(errno.EIO, "a bad sector")
        return read(reader, offset, **limits)

    monkeypatch.setattr(LogReader, "read", refuse)
    broken, good = await node.fetch(whole(T0), whole(T1), wait_ms=20_000)
    assert isinstance(broken.error, StorageError) and "repair or replace the disk" in str(broken.error)
    assert [record.value for record in records(good)] == [b"a"]
    monkeypatch.undo()  # the disk is repaired
    assert [record.value for record in await node.read_all("t")] == [b"a"]


async def test_a_waiting_fetch_that_fails_unexpectedly_ends(node: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.create("t")

    def fail(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    led = node.node.broker.partitions.get(T0)
    waiting = node.log.fetch(Fetch([whole(T0)], 20_000, 1, 1 << 20))
    assert isinstance(waiting, asyncio.Future)
    monkeypatch.setattr(LogReader, "read", fail)
    await node.append("t", b"a")
    with pytest.raises(ValueError, match="a defect"):
        await waiting
    assert not led.waiters


async def test_a_reader_behind_the_newest_segment_does_not_wait_for_min_bytes(node: Running) -> None:
    """The segments of one answer may hold less than min_bytes, and a closed segment never grows."""
    await node.create("t", configs={"internal.segment.bytes": "2000", "remote.storage.enable": "false"})
    for _ in range(20):
        await node.append("t", b"a" * 300)
    async with asyncio.timeout(60):
        (answer,) = await settled(node.log.fetch(Fetch([whole(T0)], 600_000, 1 << 20, 1 << 20)))
    assert 0 < answer.size < 1 << 20
    answer.release_all()


async def test_a_cold_range_is_answered_without_waiting_for_min_bytes(node: Running) -> None:
    await cold(node, 1)
    async with asyncio.timeout(60):
        (answer,) = await settled(node.log.fetch(Fetch([whole(T0)], 600_000, 1 << 20, 1 << 20)))
    assert answer.size > 0
    answer.release_all()


async def test_the_last_fetched_epoch_shows_where_histories_diverge(tmp_path: Path) -> None:
    """KIP-595. As in Kafka, a last fetched epoch that the log does not know is answered with OFFSET_OUT_OF_RANGE."""
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await node.append("t", b"a")
        epoch, store = node.node.broker.partitions.get(T0).state.leader_epoch, node.store
    async with running(tmp_path / "data", store) as node:
        await node.append("t", b"b")

        async def ask(offset: int, last: int) -> Fetched:
            (answer,) = await node.fetch(FetchPartition(T0, offset, 1 << 20, last_fetched_epoch=last))
            answer.release_all()
            return answer

        assert (await ask(1, epoch)).size > 0
        assert (await ask(2, epoch)).diverging == (epoch, 1)
        assert (await ask(2, epoch + 1)).diverging is None
        for offset, last in ((2, epoch + 7), (-1, epoch)):
            assert isinstance((await ask(offset, last)).error, OffsetOutOfRange)


async def test_an_epoch_that_was_never_written_in_diverges(tmp_path: Path) -> None:
    """A follower whose last record has an epoch that this log lacks diverges, however short its log is."""
    store = None
    for value in (b"a", None, b"b"):
        async with running(tmp_path / "data", store) as node:
            if store is None:
                await node.create("t")
            if value is not None:
                await node.append("t", value)
            epoch, store = node.node.broker.partitions.get(T0).state.leader_epoch, node.store
            asked = [FetchPartition(T0, offset, 1 << 20, last_fetched_epoch=epoch - 1) for offset in (0, 1, 2)]
            answers = [await node.fetch(wanted) for wanted in asked]
    assert [answer.diverging for (answer,) in answers] == [(epoch - 2, 1)] * 3
    assert [(answer.error, answer.size) for (answer,) in answers] == [(None, 0)] * 3


async def test_a_fetch_never_waits_for_more_bytes_than_an_answer_may_have(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker={"fetch.max.bytes": "1024"}) as node:
        await node.create("t")
        for _ in range(10):
            await node.append("t", b"a" * 300)
        async with asyncio.timeout(60):
            (answer,) = await settled(node.log.fetch(Fetch([whole(T0)], 600_000, 1 << 20, 1 << 20)))
        assert answer.size == 1024
        answer.release_all()


@pytest.mark.parametrize("ends", ["cancelled", "answered"])
async def test_a_fetch_that_waited_leaves_nothing_for_the_collector(tmp_path: Path, ends: str) -> None:
    """Each full collection blocks the loop, and the more objects there are, the rarer the collections become."""
    async with running(tmp_path / "data") as node:
        await node.create("t", partitions=10)
        wanted = [whole(TopicPartition("t", index)) for index in range(10)]
        gc.collect()
        gc.disable()
        try:
            waiting = [node.log.fetch(Fetch(wanted, 60_000, 1, 1 << 20)) for _ in range(20)]
            if ends == "cancelled":
                for each in waiting:
                    assert isinstance(each, asyncio.Future)
                    each.cancel()
            else:
                await node.append("t", b"wakes all of them")
            await asyncio.wait(waiting)  # type: ignore[type-var]
            for each in waiting:
                if not each.cancelled():  # type: ignore[union-attr]
                    for part in await settled(each):
                        part.release_all()
            del waiting, each
            await asyncio.sleep(0)
            left = [each for each in gc.get_objects() if isinstance(each, DelayedFetch)]
            assert not left
        finally:
            gc.enable()


async def test_the_first_cold_partitions_of_a_fetch_are_hydrated_first(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only as many partitions as fit in memory are hydrated at once: more would evict the first ones before their
    answer."""
    monkeypatch.setattr(fetching, "MAX_MISSES", 2)
    await cold(node, 5)
    wanted = Fetch([FetchPartition(TopicPartition("t", n), 0, 1 << 20) for n in range(5)], 0, 1, 1 << 20)
    led = node.node.broker.partitions.get
    hydrator = led(wanted.partitions[0].partition).log.cold._hydrator  # type: ignore[union-attr]
    hydrator.known = KnownSegments(2 * cost(await manifest_of(led(wanted.partitions[0].partition))))
    missed = fetching.attempt(wanted, led)
    assert [place for place, _ in missed.misses] == [0, 1]
    assert [part.error for part in missed.answers] == [None] * 5
    await asyncio.gather(*(asyncio.shield(miss.waiter) for _, miss in missed.misses))
    found = fetching.attempt(wanted, led)
    assert [place for place, part in enumerate(found.answers) if part.size] == [0, 1]
    assert [place for place, _ in found.misses] == [2, 3]
    found.release()
    await asyncio.gather(*(asyncio.shield(miss.waiter) for _, miss in found.misses))
