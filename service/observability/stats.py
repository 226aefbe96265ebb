"""Counters of a node since its start, as plain numbers: the body of `/stats`.

A request starts no tier process and keeps none alive. It waits briefly for the answer of a running process. If no process runs
or answers, the body has the last known values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from storage_tiers.errors import LogError

if TYPE_CHECKING:
    from service.node import Node
    from storage_tiers.cold.process.client import TierClient
    from storage_tiers.cold.read.fetcher import Hydrator

#: The longest wait for the tier process's counters, in seconds.
ASK_S = 1.0


async def node_stats(node: Node) -> Mapping[str, object]:
    """Bytes and counts since the start. `chunk_cache` and `tier_process` are None on a node without a store."""
    read = node.broker.core.log.bytes_read
    return {
        "hot_bytes_read": read.hot,
        "cold_bytes_read": read.cold,
        "chunk_cache": None if node.tier is None else _cache(node.tier.hydrator),
        "tier_process": None if node.tier is None else await _process(node.tier.client),
    }


def _cache(hydrator: Hydrator) -> Mapping[str, int]:
    cache = hydrator.cache
    return {
        "hits": hydrator.hits,
        "misses": hydrator.misses,
        "brought": hydrator.brought,
        "read_ahead": hydrator.read_ahead,
        "evicted": cache.evicted,
        "wasted": cache.wasted,
        "used_bytes": cache.used_bytes,
        "limit_bytes": cache.limit_bytes,
    }


async def _process(client: TierClient) -> Mapping[str, object]:
    try:
        async with asyncio.timeout(ASK_S):
            await client.refresh_counters()
    except (TimeoutError, LogError):
        pass  # use the last known values
    stats = client.stats
    return {
        "running": client.running,
        "starts": stats.starts,
        "lost": stats.lost,
        "asked": dict(stats.asked),
        "failed": dict(stats.failed),
        "counters": None if stats.counters is None else asdict(stats.counters),
    }
