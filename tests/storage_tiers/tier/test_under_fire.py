"""Readers keep working while segments are added, expired and swept, chunks evicted, disks full and processes lost."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.process.operations import Expire, LoadManifest, Stats, Sweep
from storage_tiers.cold.process.settings import MIB
from storage_tiers.cold.read import fetcher as hydrator
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import Advice, LogError, OffsetOutOfRange
from storage_tiers.records.batch import headers
from tests.storage_tiers.cold.support import IDS, EagerClock
from tests.storage_tiers.tier.support import WRITER, Broker, batch, broker, read, taken
from tests.storage_tiers.tier.test_tier_life import Losing

SEGMENTS = 20


class World:
    """One partition with a writer, a maintainer and readers. Batches have 1 to 9 records, a few of them large."""

    def __init__(self, b: Broker, seed: int) -> None:
        self.b = b
        self.rng = random.Random(seed)
        self.log_start = 0
        self.written = False
        self.batches: dict[int, bytes] = {}

    async def write(self) -> None:
        offset = 0
        for _ in range(SEGMENTS):
            base, parts, size, wanted = offset, [], 0, self.rng.choice((2_000, 300_000, 2 * MIB, 6 * MIB))
            while size < wanted:
                count = self.rng.randint(1, 9)
                parts.append(batch(offset, count, size=self.rng.choice((100, 5_000, 150_000, 700_000))))
                self.batches[offset] = parts[-1]
                size += len(parts[-1])
                offset += count
            content = b"".join(parts)
            await self.insist(content, base, offset)
        while self.log_start == 0 or self.b.client.stats.lost == 0:
            await asyncio.sleep(0)  # the test proves nothing until both have happened
        self.written = True

    async def insist(self, content: bytes, base: int, end: int) -> None:
        while self.b.manifest is None or self.b.manifest.end < end:
            try:
                await self.b.offload(content, base, end)
            except LogError as error:
                assert error.advice is Advice.RETRY, error
                manifest = await self.newest()
                if manifest is not None:
                    self.b.manifest = manifest

    async def newest(self) -> Manifest | None:
        while True:
            try:
                return await self.b.client.ask(LoadManifest(IDS, WRITER))
            except LogError as error:
                assert error.advice is Advice.RETRY, error

    async def maintain(self) -> None:
        while not self.written:
            for _ in range(self.rng.randint(1, 60)):
                await asyncio.sleep(0)
            manifest = self.b.manifest
            if manifest is None or manifest.end - self.log_start < 40:
                continue
            self.log_start += self.rng.randint(0, (manifest.end - self.log_start) // 4)
            try:
                manifest = await self.b.client.ask(Expire(IDS, WRITER, self.log_start))
                await self.b.client.ask(Sweep(IDS, WRITER, 0))
            except LogError as error:
                assert error.advice is Advice.RETRY, error

    async def consume(self, seed: int) -> int:
        """Returns the number of batches read. Each begins at the end of the one before, or at log start after a jump."""
        rng, reader, offset, count = random.Random(seed), self.b.reader(), 0, 0
        while not self.written or (self.b.manifest is not None and offset < self.b.manifest.end):
            if self.b.manifest is None or offset >= self.b.manifest.end:
                await asyncio.sleep(0)
                continue
            try:
                found = await read(
                    reader, lambda: self.b.manifest, offset, rng.choice((1, 50_000, 3 * MIB)), self.log_start
                )
            except OffsetOutOfRange:
                assert offset < self.log_start
                offset = self.log_start
                continue
            except LogError as error:
                assert error.advice is Advice.RETRY, error
                continue
            answer = taken(found)
            assert answer or found.next_offset > offset
            for position, header in headers(answer):
                if position + header.size > len(answer):
                    break
                assert header.base_offset == offset or header.base_offset < offset < header.next_offset
                assert answer[position : position + header.size] == self.batches[header.base_offset]
                offset = header.next_offset
                count += 1
        return count


@pytest.mark.parametrize("seed", range(2))
async def test_no_gap_and_no_repeat_whatever_is_swept_evicted_or_lost(tmp_path: Path, seed: int) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    clock = EagerClock()
    launcher = Losing(clock)
    async with broker(tmp_path, launcher=launcher, cache_bytes=16 * MIB) as b:
        launcher.store = b.store
        b.client._clock = clock
        world = World(b, seed)

        async def lose() -> None:
            while not world.written:
                for _ in range(world.rng.randint(20, 120)):
                    await asyncio.sleep(0)
                if world.rng.random() < 0.5:
                    b.cache.shrink()
                else:
                    await b.client.ask(Stats())  # starts a process, so that there is one to lose
                    await launcher.lose()

        readers = [world.consume(seed * 10 + number) for number in range(3)]
        others = asyncio.gather(world.write(), world.maintain(), lose())
        counts = await asyncio.gather(*readers)
        await others
        assert all(count > 20 for count in counts)
        assert b.cache.used_bytes <= b.cache.limit_bytes or b.cache.limit_bytes < 16 * MIB
    assert len(os.listdir("/proc/self/fd")) < open_before + 150


async def test_few_sidecars_in_memory_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydrator, "MAX_SIDECAR_BYTES", 1)
    async with broker(tmp_path) as b:
        for number in range(5):
            await b.offload(batch(number * 10, 10), number * 10, number * 10 + 10)
        assert b.manifest is not None
        reader = b.reader()
        for offset in (3, 17, 22, 39, 40, 5, 48):
            assert taken(await read(reader, b.manifest, offset)) == batch(offset // 10 * 10, 10)
        assert len(b.hydrator._fronts) == 1


#: Seconds that a file system on a disk may take to drop pages.
FORGETTING_S = 5.0
#: Attempts to drop the pages: the kernel may read ahead at any moment, and bring them back.
FORGETTING_TRIES = 20


def forget_pages(cache: Path) -> None:
    """Drops the chunks from the page cache; without effect where files live in memory. The kernel keeps pages that it works on,
    so the call is repeated for FORGETTING_S seconds."""
    for path in cache.iterdir():
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        until = time.monotonic() + FORGETTING_S
        while time.monotonic() < until:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not pages_in_memory(fd):
                break
            time.sleep(0.01)
        os.close(fd)


def pages_in_memory(fd: int) -> int:
    """Counts the pages with mincore(2): a non-blocking read would make the kernel read ahead, and bring the pages back."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(fd, 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        told = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), told)
        del first
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in told)


async def test_a_chunk_that_left_memory_is_read_by_a_thread(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        content = b"".join(batch(offset, size=300_000) for offset in range(40))
        manifest = await b.offload(content, 0, 40)
        reader = b.reader()
        misses = 0
        for offset in (3, 20, 3, 39):
            taken(await read(reader, manifest, offset))
            forget_pages(tmp_path / "cache")
            found = reader.read(manifest, offset, 1, log_start=0)
            if isinstance(found, ColdMiss):  # never on a file system in memory
                misses += 1
                await found.waiter
                found = await read(reader, manifest, offset, 1)
            assert taken(found) == batch(offset, size=300_000)
        print(f"{misses} of 4 reads would have waited for the disk")
        assert b.gets() == 3


async def test_a_chunk_read_by_a_thread_is_released(tmp_path: Path) -> None:
    async with broker(tmp_path) as b:
        manifest = await b.offload(b"".join(batch(offset, size=300_000) for offset in range(3)), 0, 3)
        reader = b.reader()
        taken(await read(reader, manifest, 1))
        for _ in range(FORGETTING_TRIES):
            forget_pages(tmp_path / "cache")
            found = reader.read(manifest, 1, 1, log_start=0)
            if isinstance(found, ColdMiss):
                break
            taken(found)
        else:
            pytest.skip("files live in memory here")
        await found.waiter
        taken(await read(reader, manifest, 1))
        chunk = b.hydrator.chunk(manifest.segments[0], 0)
        assert chunk is not None and chunk.users == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 16 MiB, mounted as the cache directory."""
    place = tmp_path / "cache"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tidelog-test", place], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_disk_makes_reads_retry_and_the_cache_small(tmp_path: Path, small_disk: Path) -> None:
    async with broker(tmp_path, cache_bytes=64 * MIB) as b:
        offsets = range(60)
        await b.offload(b"".join(batch(offset, size=700_000) for offset in offsets), 0, 60)
        reader, refused = b.reader(), 0
        assert b.manifest is not None
        for offset in (*offsets, *offsets):
            while True:
                try:
                    data = taken(await read(reader, b.manifest, offset, 1))
                    break
                except LogError as error:
                    assert error.advice is Advice.RETRY
                    refused += 1
            assert data == batch(offset, size=700_000)
        assert 0 < refused < 60
        assert b.cache.used_bytes <= 16 * MIB
        assert sum(path.stat().st_size for path in small_disk.iterdir()) <= 16 * MIB
        print(f"{refused} reads of {2 * len(offsets)} were refused, all came in the end")
