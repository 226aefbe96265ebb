"""Evicts a partition's local segments, one after another; `tiering` decides which ones are safe to evict."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from service.broker.partition.partition import Partition
from storage_tiers import events

log = logging.getLogger(__name__)


async def evict(partition: Partition, ends: Iterable[int]) -> None:
    """Evicts the oldest segments, up to each of the `ends` in order."""
    run = asyncio.get_running_loop().run_in_executor
    for end in ends:
        hot = partition.log.hot
        base, before = hot.local_start_offset, hot.evicted_bytes
        eviction = hot.evict_oldest(end)
        if eviction is not None:
            await run(None, eviction.sync)
            eviction.finish()
            await run(None, eviction.free)
            freed, key = hot.evicted_bytes - before, partition.partition
            events.info(log, "segment.evicted", partition=key, base_offset=base, end_offset=end, bytes=freed)
