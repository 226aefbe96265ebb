"""Raises the log start offsets of partitions. Each raise is durable before it takes effect.

Raises that arrive while a write waits or runs share the next write, because one request may name thousands of partitions. The
raises of one partition have no order; the highest offset wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from service.broker.partition.checkpointing import OffsetCheckpoints, Offsets
from service.broker.partition.partition import Partition
from storage_tiers.hot.checkpoints import LOG_STARTS

#: Computes the log starts to write from the log starts on disk and the raises.
LogStartsOf = Callable[[Offsets, Mapping[Partition, int]], Awaitable[Offsets]]


class LogStartRaises:
    """The raises of a node that are not written yet."""

    def __init__(self, checkpoints: OffsetCheckpoints, log_starts: LogStartsOf) -> None:
        self._checkpoints = checkpoints
        self._log_starts = log_starts
        #: Raises of the next write; empty once that write has begun.
        self._gathered: dict[Partition, int] = {}
        self._next: asyncio.Task[None] | None = None

    async def add(self, wanted: Mapping[Partition, int]) -> None:
        """Returns once these offsets are the partitions' log starts. Raises StorageError if the disk refuses; then no log start
        has changed."""
        for opened, offset in wanted.items():
            self._gathered[opened] = max(offset, self._gathered.get(opened, 0))
        if self._next is None:
            raising = self._raise(self._gathered)
            self._next = asyncio.get_running_loop().create_task(raising, name="raise log starts")
        await asyncio.shield(self._next)

    async def _raise(self, offsets: Mapping[Partition, int]) -> None:
        await self._checkpoints.write(LOG_STARTS, partial(self._begin, offsets))
        for opened, offset in offsets.items():
            # Meanwhile the topic may have been deleted, or the log discarded for a shorter one from the bucket.
            if not opened.deleted and offset <= opened.log.end_offset:
                opened.log.hot.raise_log_start(offset)

    async def _begin(self, offsets: Mapping[Partition, int], known: Offsets) -> Offsets:
        """Called when the write begins. Later raises belong to the next write."""
        self._gathered, self._next = {}, None
        return await self._log_starts(known, offsets)
