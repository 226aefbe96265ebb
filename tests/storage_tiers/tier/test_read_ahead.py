"""Scans make few requests, many of them in parallel, and read-ahead stays within its share of the cache."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.model import Ids, Manifest
from storage_tiers.cold.process.settings import CHUNK_BYTES, MIB
from storage_tiers.cold.read.reader import ColdMiss, ColdReader
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import TierUnavailable
from storage_tiers.records.batch import headers
from tests.storage_tiers.cold.support import IDS, EagerClock
from tests.storage_tiers.tier.support import Broker, batch, broker, read, taken, until
from tests.storage_tiers.tier.test_tier_client import Watched


async def offloaded(b: Broker, segments: int, size: int, ids: Ids = IDS) -> Manifest:
    """Offloads segments of about `size` bytes, made of batches of 1 MB."""
    offset = 0
    for _ in range(segments):
        parts, base, length = [], offset, 0
        while length < size:
            parts.append(batch(offset, size=1_000_000))
            length += len(parts[-1])
            offset += 1
        b.manifest = await b.offload(b"".join(parts), base, offset, ids=ids)
    assert b.manifest is not None
    return b.manifest


async def scan(reader: ColdReader, manifest: Manifest, max_bytes: int = MIB, start: int = 0) -> int:
    """Reads to the end as a consumer does; returns the total size of the whole batches."""
    total, offset = 0, start
    while offset < manifest.end:
        answer = taken(await read(reader, manifest, offset, max_bytes))
        for position, header in headers(answer):
            if position + header.size > len(answer):
                break
            assert header.base_offset == offset
            total += header.size
            offset = header.next_offset
    return total


async def test_a_scan_costs_at_most_260_gets_a_gib(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await offloaded(b, 1, 80 * MIB)
        before = b.store.count("get")
        total = await scan(b.reader(), manifest)
        assert total == manifest.segments[0].length
        gets = b.store.count("get") - before
        # Every chunk once, and one sidecar: 257 GETs for a segment of 1 GiB.
        assert gets == -(-total // CHUNK_BYTES) + 1
        print(
            f"{gets} GETs for {total / MIB:.0f} MiB, {b.hydrator.read_ahead} of {b.hydrator.brought} chunks read ahead"
        )
        assert b.hydrator.brought == -(-total // CHUNK_BYTES)
        assert b.hydrator.read_ahead >= b.hydrator.brought - 3
        assert b.cache.wasted == 0


async def test_a_scan_keeps_many_connections_busy(tmp_path: Path) -> None:
    store = Watched()
    async with broker(tmp_path, store=store) as b:
        manifest = await offloaded(b, 3, 33 * MIB)
        store.most = 0
        await scan(b.reader(), manifest)
        assert store.most >= 4


async def test_random_reads_read_nothing_ahead(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with broker(tmp_path) as b:
        manifest = await offloaded(b, 2, 40 * MIB)
        reader = b.reader()
        for offset in (o for _ in range(3) for o in rng.sample(range(0, manifest.end, 9), 8)):
            taken(await read(reader, manifest, offset, 1000))
        assert b.hydrator.read_ahead <= 4  # random reads that happened to hit neighbouring chunks


async def test_read_ahead_never_fills_more_than_half_of_the_cache(tmp_path: Path) -> None:
    async with broker(tmp_path, cache_bytes=24 * MIB) as b:
        manifests = {}
        for number in range(4):
            ids = dataclasses.replace(IDS, partition=number)
            manifests[ids] = await offloaded(b, 1, 20 * MIB, ids)
        most = 0

        async def consume(ids: Ids, manifest: Manifest) -> None:
            nonlocal most
            reader, offset = b.reader(ids), 0
            while offset < manifest.end:
                answer = taken(await read(reader, manifest, offset, MIB))
                offset = next(iter(headers(answer)))[1].next_offset
                most = max(most, b.cache.unread_bytes)
                assert b.cache.used_bytes <= b.cache.limit_bytes

        await asyncio.gather(*(consume(ids, manifest) for ids, manifest in manifests.items()))
        assert 0 < most <= 12 * MIB
        assert b.hydrator.read_ahead > 0


async def test_a_slice_outlives_the_eviction_of_its_chunk(tmp_path: Path) -> None:
    async with broker(tmp_path, cache_bytes=16 * MIB) as b:
        manifest = await offloaded(b, 1, 60 * MIB)
        reader = b.reader()
        held = await read(reader, manifest, 0, MIB)
        expected = batch(0, size=1_000_000)
        assert await scan(reader, manifest, start=5) > 50 * MIB
        for name in list((tmp_path / "cache").iterdir()):
            name.unlink()
        assert taken(held)[: len(expected)] == expected


async def test_awaited_chunks_overtake_the_read_ahead(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await offloaded(b, 1, 40 * MIB)
        reader = b.reader()
        for offset in (0, 5, 9):
            taken(await read(reader, manifest, offset, 1000))
        await until(lambda: b.hydrator.brought >= 4)
        taken(await read(reader, manifest, 13, 1000))
        ahead = b.hydrator.read_ahead
        asked = b.client.stats.asked["RaisePriority"]
        found = reader.read(manifest, 30, 1000, log_start=0)
        if isinstance(found, ColdMiss):
            await found.waiter
            found = reader.read(manifest, 30, 1000, log_start=0)
        assert not isinstance(found, ColdMiss)
        assert taken(found) == batch(30, size=1_000_000)
        assert b.client.stats.asked["RaisePriority"] <= asked + 1 and b.hydrator.read_ahead >= ahead


async def test_a_full_disk_shrinks_the_cache_and_asks_to_retry(tmp_path: Path) -> None:
    """For a while the file system refuses every chunk write, as a full one does."""
    async with broker(tmp_path, store=MemoryStore(EagerClock())) as b:
        manifest = await offloaded(b, 1, 40 * MIB)
        reader = b.reader()
        taken(await read(reader, manifest, 0, 1000))
        hidden = tmp_path / "hidden"
        (tmp_path / "cache").rename(hidden)
        (tmp_path / "cache").write_bytes(b"no directory")
        limit = b.cache.limit_bytes
        found = reader.read(manifest, 20, 1000, log_start=0)
        assert isinstance(found, ColdMiss)
        with pytest.raises(TierUnavailable, match="half of its space"):
            await found.waiter
        assert b.cache.limit_bytes < limit
        (tmp_path / "cache").unlink()
        hidden.rename(tmp_path / "cache")
        assert taken(await read(reader, manifest, 20, 1000)) == batch(20, size=1_000_000)
