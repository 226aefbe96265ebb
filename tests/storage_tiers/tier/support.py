"""A broker's side of the tier: client, cache, hydrator and readers, with the tier's server in the test's own process."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter, RemoteSegment
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.launcher import TierLauncher
from storage_tiers.cold.process.operations import Extend, LoadManifest, ReplaceSegments
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.read.cache import ChunkCache
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.pace import Pace
from storage_tiers.cold.read.reader import ColdMiss, ColdReader
from storage_tiers.cold.read.view import ColdSlices
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import AbortedTransaction, EpochEntry
from tests.storage_tiers.cold.support import IDS, EagerClock
from tests.support.clock import SeededRng
from tests.support.faulty_store import FaultyStore
from tests.support.local_tier import LocalLauncher

WRITER = ManifestWriter(1, 1)
MEMORY = StoreLocation.parse("memory://tier-tests")
#: Deadlines and an idle time that expire in no test, on however busy a machine.
PATIENT = TierSettings(read_deadline_s=60.0, commit_deadline_s=60.0, idle_s=3600.0)
#: A deadline for tests that wait until it expires.
QUICK = replace(PATIENT, read_deadline_s=1.0)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits in real time until the condition holds; raises TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def batch(
    base: int, count: int = 1, *, size: int = 64, epoch: int = 1, timestamp: int = 1_700_000_000_000, seed: int = 0
) -> bytes:
    """A batch of `count` records with `size`-byte values, unique by `seed` and `base`; record i is at `timestamp` + i ms."""
    noise = random.Random(f"{seed}/{base}").randbytes(64)
    value = (noise * (size // 64 + 1))[:size]
    records = [NewRecord(b"k", value, timestamp=timestamp + i) for i in range(count)]
    return build_batch(records, base_offset=base, leader_epoch=epoch)


@dataclass
class Broker:
    """One node's cold tier on one store."""

    store: FaultyStore
    client: TierClient
    cache: ChunkCache
    hydrator: Hydrator
    directory: Path
    clock: EagerClock
    manifest: Manifest | None = None
    reloads: int = 0
    written: int = 0

    def reader(self, ids: Ids = IDS) -> ColdReader:
        async def load(_: Ids) -> Manifest:
            assert self.manifest is not None
            return self.manifest

        async def reload(_: Ids) -> Manifest:
            self.reloads += 1
            self.manifest = await self.client.ask(LoadManifest(ids, WRITER))
            assert self.manifest is not None
            return self.manifest

        return ColdReader(ids, self.hydrator, load=load, reload=reload)

    async def offload(
        self,
        content: bytes,
        base: int,
        end: int,
        *,
        epochs: Sequence[EpochEntry] = (EpochEntry(1, 0),),
        aborted: Sequence[AbortedTransaction] = (),
        log_start: int = 0,
        ids: Ids = IDS,
    ) -> Manifest:
        """Extends the manifest by a local segment, as a broker's offload does."""
        job = self._job(content, base, end, epochs, aborted, log_start)
        self.manifest = await self.client.ask(Extend(ids, WRITER, job))
        os.unlink(job.path)
        assert self.manifest.end == end
        return self.manifest

    async def replace(self, content: bytes, old: Sequence[RemoteSegment]) -> Manifest:
        """Replaces neighbours with one segment, as compaction does; `manifest` stays as it was."""
        job = self._job(content, old[0].base, old[-1].end)
        manifest = await self.client.ask(ReplaceSegments(IDS, WRITER, job, tuple(old)))
        os.unlink(job.path)
        return manifest

    def _job(
        self,
        content: bytes,
        base: int,
        end: int,
        epochs: Sequence[EpochEntry] = (EpochEntry(1, 0),),
        aborted: Sequence[AbortedTransaction] = (),
        log_start: int = 0,
    ) -> ExtendJob:
        self.written += 1
        path = self.directory / f"{base:020}-{self.written}.log"
        path.write_bytes(content)
        epoch = epochs[-1].epoch
        producers = path.with_suffix(".snapshot")
        producers.write_bytes(b"producers")
        return ExtendJob(
            str(path),
            0,
            len(content),
            base,
            end,
            epoch,
            epoch,
            tuple(epochs),
            str(producers),
            tuple(aborted),
            log_start,
        )

    def gets(self, part: str = ".log") -> int:
        return self.store.count("get", part)


@asynccontextmanager
async def broker(
    directory: Path,
    *,
    store: ObjectStore | None = None,
    settings: TierSettings = PATIENT,
    cache_bytes: int = 64 << 20,
    launcher: TierLauncher | None = None,
    location: StoreLocation = MEMORY,
) -> AsyncIterator[Broker]:
    clock = EagerClock()
    faulty = FaultyStore(store if store is not None else MemoryStore(SystemClock()))

    async def open_store(_: StoreLocation) -> ObjectStore:
        return faulty

    local = launcher if launcher is not None else LocalLauncher(open_store, clock, SeededRng(7))
    cache = ChunkCache(str(directory / "cache"), cache_bytes)
    client = TierClient(
        location,
        cache.directory,
        clock=clock if launcher is None else SystemClock(),
        rng=SeededRng(8),
        settings=settings,
        launcher=local,
        on_end=cache.remove_strays,
    )
    hydrator = Hydrator(client, cache, Pace(lambda: 0, lambda: 0.0, lambda: 1.0), clock)
    try:
        yield Broker(faulty, client, cache, hydrator, directory, clock)
    finally:
        await hydrator.close()
        await client.close()
        cache.close()


def taken(slices: ColdSlices) -> bytes:
    """Reads the slices' bytes and releases their files."""
    data = b"".join(os.pread(piece.file.fd, piece.length, piece.position) for piece in slices.slices)
    for piece in slices.slices:
        piece.file.release()
    return data


async def read(
    reader: ColdReader,
    manifest: Callable[[], Manifest | None] | Manifest,
    offset: int,
    max_bytes: int = 1 << 20,
    log_start: int = 0,
) -> ColdSlices:
    """Reads as a fetch does: on a miss it waits for the hydration and reads again."""
    for _ in range(100):
        current = manifest if isinstance(manifest, Manifest) else manifest()
        assert current is not None
        found = reader.read(current, offset, max_bytes, log_start=log_start)
        if not isinstance(found, ColdMiss):
            return found
        await asyncio.shield(found.waiter)
    raise AssertionError(f"offset {offset} was never at hand")


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Inside the context, this process cannot open another file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
