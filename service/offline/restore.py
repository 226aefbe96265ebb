"""Rebuilds a lost data directory from the store without starting the node: the take-over of `tidelog restore`."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

from service.directory.beginning import belongs, no_such_cluster
from service.directory.verify import verify
from service.lifecycle.readiness import Readiness
from service.metadata.log import MetadataLog
from service.settings.derived import cache_directory_of, check_store_is_there, tier_client
from service.settings.node_settings import NodeSettings
from service.takeover.run import RecoveryPoint, TakeOver
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.process.cluster_operations import FindClusters
from storage_tiers.errors import InvalidConfig, StoreRefused
from storage_tiers.files import OsFiles
from storage_tiers.hot.data_dir import DataDirectory


async def restore(settings: NodeSettings, cluster_id: str, *, dry_run: bool) -> list[RecoveryPoint]:
    """Makes `settings.data_dir` the cluster's directory. It must be empty, or left by an interrupted take-over. With `dry_run`,
    changes neither the directory nor the store. Raises LogError if the restore is impossible."""
    clock, rng, files = SystemClock(), SystemRng(), OsFiles()
    client = tier_client(settings, None, clock, rng)
    if client is None:
        raise InvalidConfig("a restore needs the store: give its --store")
    check_store_is_there(settings)
    parts = {"node_id": settings.node_id, "readiness": Readiness(), "clock": clock, "rng": rng}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        found = await client.ask(FindClusters())
        if cluster_id not in [cluster.cluster_id for cluster in found]:
            raise StoreRefused(no_such_cluster(settings.store, cluster_id, found))
        if settings.verify:
            await verify(settings.store, cluster_id, endpoint=settings.s3_endpoint, region=settings.s3_region)
        if dry_run:
            return await _preview(settings, TakeOver(client, None, cluster_id, **parts))  # type: ignore[arg-type]
        data = DataDirectory.open(str(settings.data_dir), files=files, rng=rng)
        stack.callback(data.close)
        full = belongs(data.path)
        metadata = MetadataLog.open(data.path, files, rng)
        stack.push_async_callback(metadata.close)
        if full and (metadata.image.take_over is None or metadata.image.cluster_id != cluster_id):
            raise InvalidConfig(
                f"{data.path} belongs to cluster {metadata.image.cluster_id} already: give an empty --data-dir"
            )
        taking = TakeOver(client, metadata, cluster_id, **parts)  # type: ignore[arg-type]
        os.makedirs(cache_directory_of(settings), exist_ok=True)
        await taking.begin()
        identity = data.establish(cluster_id, settings.node_id)
        return (await taking.run(identity.directory_id))[1]


async def _preview(settings: NodeSettings, taking: TakeOver) -> list[RecoveryPoint]:
    """Reads objects from the store through the cache's folder, and afterwards removes the folders that it has created."""
    made = _make(cache_directory_of(settings))
    try:
        return await taking.preview()
    finally:
        for folder in made:
            os.rmdir(folder)


def _make(directory: str) -> list[str]:
    """Creates the folder and its parents. Returns the folders that were missing, the innermost first."""
    path = Path(directory)
    missing = [str(folder) for folder in (path, *path.parents) if not folder.exists()]
    os.makedirs(directory, exist_ok=True)
    return missing
