"""Assigns unique producer ids: a block is reserved in the metadata log before any of its ids is handed out (KIP-730).

A crash loses the rest of a block, which costs nothing: ids are 63 bits wide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.metadata import planner
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog


def blocks_of(metadata: MetadataLog, node_id: int) -> Callable[[], Awaitable[tuple[int, int]]]:
    """A function that durably reserves the node's next block and returns (first id, count)."""

    def plan(image: MetadataImage) -> tuple[planner.Records, tuple[int, int]]:
        block = planner.producer_id_block(image, node_id)
        return block.records, (block.first, block.size)

    async def reserve() -> tuple[int, int]:
        return await metadata.change(plan)

    return reserve


class ProducerIds:
    """`reserve()` durably reserves a block and returns (first id, count)."""

    def __init__(self, reserve: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._reserve = reserve
        self._next = 0
        self._end = 0
        self._reserving: asyncio.Future[None] | None = None

    async def next(self) -> int:
        while self._next >= self._end:
            await self._refill()
        given = self._next
        self._next += 1
        return given

    async def _refill(self) -> None:
        if self._reserving is not None:
            await asyncio.shield(self._reserving)
            return
        self._reserving = asyncio.ensure_future(self._take_block())
        try:
            await asyncio.shield(self._reserving)
        finally:
            self._reserving = None

    async def _take_block(self) -> None:
        first, count = await self._reserve()
        self._next, self._end = first, first + count
