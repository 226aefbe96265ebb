"""Builds a node's access to the object store: the tier process's client, the chunk cache, and the claim to write."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from service.broker.background.metadata_snapshots import MetadataSnapshots
from service.broker.background.store_access import StoreAccess
from service.broker.background.store_claim import ClusterClaim, OwnClaim, StoreClaim
from service.build.configs import NodeConfigs
from service.build.ground import Ground
from service.directory.home import HomeGuard
from service.process.scheduling import waited_s
from service.settings.derived import cache_directory_of, share
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.read.cache import LEAST_BYTES, ChunkCache, default_cache_bytes
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.pace import Pace
from storage_tiers.errors import StorageError

CACHE_BYTES = "tidelog.tier.chunk.cache.bytes"


@dataclass(frozen=True, slots=True)
class Tier:
    """The parts that only a node with a store has; `access` holds the claim to write."""

    client: TierClient
    access: StoreAccess
    cache: ChunkCache
    hydrator: Hydrator
    snapshots: MetadataSnapshots


def build_tier(ground: Ground, configs: NodeConfigs, client: TierClient, home: HomeGuard, directory_id: str) -> Tier:
    """Builds the parts. Raises StorageError if the cache directory cannot be created."""
    host, broker = ground.host, configs.broker
    cache = _empty_cache(ground, broker.tidelog_tier_chunk_cache_bytes)
    client.on_end = cache.remove_strays
    pace = Pace(lambda: ground.appended.batches, waited_s, lambda: broker.tidelog_tier_read_most_waiting_percent / 100)
    access = StoreAccess(
        client,
        ground.metadata,
        _claim(ground, configs, home, directory_id),
        node_id=ground.settings.node_id,
        readiness=ground.readiness,
        clock=host.clock,
        rng=host.rng,
        grace_ms=lambda: broker.tidelog_tier_delete_grace_ms,
    )
    snapshots = MetadataSnapshots(
        ground.metadata,
        access,
        ground.data.path,
        interval_ms=lambda: broker.tidelog_metadata_snapshot_interval_ms,
        clock=host.clock,
    )
    return Tier(client, access, cache, Hydrator(client, cache, pace, host.clock), snapshots)


def _claim(ground: Ground, configs: NodeConfigs, home: HomeGuard, directory_id: str) -> StoreClaim:
    if ground.membership is not None:
        return ClusterClaim(ground.metadata)
    return OwnClaim(
        ground.metadata,
        configs.controller,
        ground.host.rng,
        node_id=ground.settings.node_id,
        directory_id=directory_id,
        may_be_copy=lambda: home.away is not None,
    )


def _empty_cache(ground: Ground, size: int) -> ChunkCache:
    """Makes an empty cache, and removes the chunks of an earlier run. Raises StorageError if the directory cannot be
    created."""
    directory = cache_directory_of(ground.settings)
    shutil.rmtree(directory, ignore_errors=True)
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {directory} ({error}); free space, or repair or replace the disk") from error
    if CACHE_BYTES not in ground.settings.broker:  # a configured size applies even if it is a large share of the disk
        size = min(size, default_cache_bytes(directory))
    size = share(ground.settings, size, LEAST_BYTES)
    return ChunkCache(directory, size)
