"""Assigns unique producer ids: a block is reserved in the metadata log before any of its ids is issued (KIP-730).

A crash loses the rest of a block, which costs nothing: ids are 63 bits wide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from service.metadata.commands import AllocateProducerIds, ProducerIdBlock
from service.metadata.controller import Commands


def blocks_of(controller: Commands, node_id: int) -> Callable[[], Awaitable[ProducerIdBlock]]:
    """A function that durably reserves the node's next block."""
    return partial(controller.execute, AllocateProducerIds(node_id))


class ProducerIds:
    """`reserve()` durably reserves a block."""

    def __init__(self, reserve: Callable[[], Awaitable[ProducerIdBlock]]) -> None:
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
