"""Producers that wait for their records to be committed, in append order. Pure but for its futures."""

from __future__ import annotations

import asyncio
from collections import deque

from storage_tiers.errors import LogError


class Acknowledgements:
    """Waiters, ordered by the end offset of their appends."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def at(self, end: int) -> asyncio.Future[None]:
        """A future that completes once all records below `end` are committed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((end, waiter))
        return waiter

    def reached(self, high_watermark: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            waiter = waiting.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)

    def refuse(self, error: LogError) -> None:
        """Fails all waiters with the error."""
        while self._waiting:
            waiter = self._waiting.popleft()[1]
            if not waiter.done():
                waiter.set_exception(error)
