"""The history that a partition keeps in memory: always a summary, and its segments only while cold records are read."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.history import synthetic
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.known_segments import cost
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, filled, manifest_of, running, until

T0 = TopicPartition("t", 0)
PARTITIONS = 64
WANTED_BYTES = 2048


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """A function that returns the bytes that Python holds now, garbage excluded."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("segments", [24, 720, 20_000])
async def test_a_tiered_partition_holds_at_most_2_kib_more_than_an_untiered_one(
    tmp_path: Path, traced: Callable[[], int], segments: int
) -> None:
    async with running(tmp_path / "data") as node:
        await node.create("t", PARTITIONS, {"remote.storage.enable": "false"})
        held = []
        for commit in range(1000, 1005):
            before = traced()
            for partition in node.node.broker.partitions:
                ids, writer = partition.ids, node.node.work.tiering._writer()
                await node.node.work.tiering.accept(
                    partition, synthetic(segments, ids, writer=writer, commit=commit)[0]
                )
            held.append((traced() - before) / PARTITIONS)
        summaries = [partition.log.tier for partition in node.node.broker.partitions]
        assert all(tier is not None and (tier.segments, tier.commit) == (segments, 1004) for tier in summaries)
        assert 500 < held[0] <= WANTED_BYTES
        # The least of four commits counts: objects of earlier tests also allocate, but not at each commit.
        assert min(held[1:]) < 256, "a newer manifest replaces the older"


async def test_cold_reads_load_segments_and_keep_a_bounded_number(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        await node.evicted("t")
        known, led = hydrator(node).known, node.node.broker.partitions.get(T0)
        known.forget(led.ids)
        assert len(await node.read_all("t")) == 40
        assert (known.loads, len(known)) == (1, 1)
        assert len(await node.read_all("t")) == 40
        assert known.loads == 1
        others = [Ids("c", "others", led.topic_id, number) for number in range(3)]
        manifest = await manifest_of(led)
        known._limit_bytes = 2 * cost(manifest)
        for ids in others:
            known.keep_manifest(ids, manifest)
        assert known.bytes <= known._limit_bytes
        assert known.manifest(led.ids) is None
        assert len(await node.read_all("t")) == 40
        assert known.loads == 2


@pytest.mark.parametrize("damage", ["lost", "flipped", "older"])
async def test_an_out_of_date_saved_manifest_is_loaded_from_the_store_and_saved_again(
    tmp_path: Path, damage: str
) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node, 20)
        await node.seal("t")
        led = node.node.broker.partitions.get(T0)
        path = Path(led.log.hot.directory) / FILE_NAME
        older = path.read_bytes()
        for i in range(20, 40):
            await node.append("t", b"%03d" % i * 50)
        await node.seal("t")
        await node.evicted("t")
        current = path.read_bytes()
        assert current != older
        hydrator(node).known.forget(led.ids)
        match damage:
            case "lost":
                path.unlink()
            case "flipped":
                path.write_bytes(current.replace(b"{", b"[", 1))
            case "older":
                path.write_bytes(older)
        assert len(await node.read_all("t")) == 40
        await until(lambda: path.exists() and path.read_bytes() == current)


async def test_readers_at_once_load_a_manifest_once(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node)
        await node.seal("t")
        await node.evicted("t")
        led, known = node.node.broker.partitions.get(T0), hydrator(node).known
        known.forget(led.ids)
        began = known.loads
        manifests = await asyncio.gather(*(manifest_of(led) for _ in range(20)))
        assert known.loads == began + 1
        assert all(manifest is manifests[0] for manifest in manifests)


def hydrator(node: Running) -> Hydrator:
    assert node.tier.hydrator is not None
    return node.tier.hydrator
