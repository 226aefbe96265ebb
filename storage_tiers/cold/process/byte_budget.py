"""A shared bound on bytes in flight. Urgent requests are served before the rest, each group in order of arrival.

Invariant: neither the bytes held nor the number of holders exceeds its limit. Not promised: that other requests progress
while urgent ones keep coming.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Ticket:
    """One request for bytes, in the queue or granted."""

    __slots__ = ("size", "urgent", "waiter")

    def __init__(self, size: int, urgent: bool) -> None:
        self.size = size
        self.urgent = urgent
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ByteBudget:
    """`holders` bounds concurrent tickets. A ticket larger than the limit gets the whole limit, alone."""

    def __init__(self, limit_bytes: int, holders: int) -> None:
        if limit_bytes < 1 or holders < 1:
            raise ValueError("a budget is at least one byte for one holder")
        self._limit = limit_bytes
        self._free_holders = holders
        self._urgent: deque[Ticket] = deque()
        self._rest: deque[Ticket] = deque()
        self.held_bytes = 0
        self.most_held_bytes = 0

    def ticket(self, size: int, *, urgent: bool = True) -> Ticket:
        return Ticket(min(size, self._limit), urgent)

    @asynccontextmanager
    async def hold(self, ticket: Ticket) -> AsyncIterator[None]:
        await self._acquire(ticket)
        try:
            yield
        finally:
            self._give_back(ticket)

    def raise_priority(self, ticket: Ticket) -> None:
        """Moves the ticket to the urgent queue, behind those already there."""
        if ticket.urgent:
            return
        ticket.urgent = True
        if ticket in self._rest:
            self._rest.remove(ticket)
            self._urgent.append(ticket)
            self._grant()

    async def _acquire(self, ticket: Ticket) -> None:
        (self._urgent if ticket.urgent else self._rest).append(ticket)
        self._grant()
        try:
            await ticket.waiter
        except asyncio.CancelledError:
            if ticket.waiter.cancelled():
                self._grant()  # requests behind it may fit
            else:
                self._give_back(ticket)
            raise

    def _give_back(self, ticket: Ticket) -> None:
        self.held_bytes -= ticket.size
        self._free_holders += 1
        self._grant()

    def _grant(self) -> None:
        """Grants strictly in order inside each queue, so that small requests never starve a large one."""
        for queue in (self._urgent, self._rest):
            while queue:
                ticket = queue[0]
                if ticket.waiter.cancelled():
                    queue.popleft()
                    continue
                if self._free_holders == 0 or self.held_bytes + ticket.size > self._limit:
                    return
                queue.popleft()
                self._free_holders -= 1
                self.held_bytes += ticket.size
                self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
                ticket.waiter.set_result(None)
