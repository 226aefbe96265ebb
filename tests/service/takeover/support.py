"""A store that a lost node leaves behind, and take-overs of it that may be interrupted anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from service.lifecycle.readiness import Readiness
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from service.takeover.run import RecoveryPoint, TakeOver
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.manifest.model import ManifestWriter
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.files import Files, OsFiles
from storage_tiers.hot.data_dir import DataDirectory
from tests.service.broker.support import TIERED, running, until
from tests.support.faulty_store import FaultyStore
from tests.support.local_tier import LocalLauncher

SNAPSHOTS = {"tidelog.metadata.snapshot.interval.ms": "100"}


async def left_behind(directory: Path) -> tuple[MemoryStore, MetadataImage]:
    """Leaves topics `t` (in the bucket), `u` (not yet) and `gone` (being deleted); returns the store and the final metadata."""
    memory = MemoryStore(SystemClock())
    async with running(directory, FaultyStore(memory), SNAPSHOTS) as node:
        await node.create("t", 2, {**TIERED, "max.message.bytes": "4321"})
        await node.create("u")
        await node.create("gone", 1, TIERED)
        for number in range(20):
            await node.append("t", b"%03d" % number * 50, partition=number % 2)
            await node.append("gone", b"x" * 500)
        await node.seal("t")
        await node.seal("gone")
        await node.core.log.init_producer_id()
        await node.core.topics.delete(["gone"])
        await node.node.work.topic_files.tick()
        image = node.node.ground.metadata.image
        snapshots = node.tier.snapshots
        assert snapshots is not None
        await until(lambda: snapshots._written is node.node.ground.metadata.image)
    return memory, image


async def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore(SystemClock())
    for info in store.blocking().list(""):
        await copy.put(info.key, store.blocking().get(info.key).data)
    return copy


class Taking:
    def __init__(
        self, directory: Path, data: DataDirectory, metadata: MetadataLog, take: TakeOver, cluster: str
    ) -> None:
        self.directory = directory
        self.data = data
        self.metadata = metadata
        self.take = take
        self.cluster = cluster

    async def run(self) -> tuple[ManifestWriter, list[RecoveryPoint]]:
        """Takes the cluster over, as a node's start does."""
        await self.take.begin()
        identity = self.data.establish(self.cluster, 1)
        return await self.take.run(identity.directory_id)


@asynccontextmanager
async def taking(
    directory: Path, store: ObjectStore, cluster: str, files: Files | None = None
) -> AsyncIterator[Taking]:
    clock, rng = SystemClock(), SystemRng()

    async def open_store(_: StoreLocation) -> ObjectStore:
        return store

    data = DataDirectory.open(str(directory), files=OsFiles(), rng=rng)
    cache = directory / "cache"
    cache.mkdir(exist_ok=True)
    location = StoreLocation.parse("memory://taken")
    client = TierClient(location, str(cache), clock=clock, rng=rng, launcher=LocalLauncher(open_store, clock, rng))
    metadata = MetadataLog.open(str(directory), files or OsFiles(), SystemRng())
    take = TakeOver(client, metadata, cluster, node_id=1, readiness=Readiness(), clock=clock, rng=rng)
    try:
        yield Taking(directory, data, metadata, take, cluster)
    finally:
        await client.close()
        await metadata.close()
        data.close()
