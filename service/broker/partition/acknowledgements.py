"""Producers that wait for their records to be committed, in append order. The event loop is used only to make futures."""

from __future__ import annotations

import asyncio
from collections import deque

from storage_tiers.errors import LogError


class Acknowledgements:
    """`waiting` has the waiters, ordered by the end offset of their appends."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def at(self, end: int) -> asyncio.Future[None]:
        """A future that completes once all records below `end` are committed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((end, waiter))
        return waiter

    def reached(self, high_watermark: int) -> None:
        waiting = self.waiting
        while waiting and waiting[0][0] <= high_watermark:
            waiter = waiting.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, error: LogError) -> None:
        """Fails all waiters with the error."""
        while self.waiting:
            waiter = self.waiting.popleft()[1]
            if not waiter.done():
                waiter.set_exception(error)
