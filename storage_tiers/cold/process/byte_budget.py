"""A shared bound on bytes in flight. Urgent requests are served before the rest. In each of the two groups the owners take
turns, and each owner's requests are served in order of arrival.

Invariant: neither the bytes held nor the number of holders exceeds its limit. An owner with many requests delays a request of
another owner by one turn, not by its whole queue. Not promised: that other requests progress while urgent ones keep coming.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Ticket:
    """One request for bytes, in the queue or granted."""

    __slots__ = ("owner", "size", "urgent", "waiter")

    def __init__(self, size: int, urgent: bool, owner: int) -> None:
        self.size = size
        self.urgent = urgent
        self.owner = owner
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ByteBudget:
    """`holders` bounds concurrent tickets. A ticket larger than the limit gets the whole limit, alone."""

    def __init__(self, limit_bytes: int, holders: int) -> None:
        if limit_bytes < 1 or holders < 1:
            raise ValueError("a budget is at least one byte for one holder")
        self._limit = limit_bytes
        self._free_holders = holders
        self._urgent = _Turns()
        self._rest = _Turns()
        self.held_bytes = 0
        self.most_held_bytes = 0

    def ticket(self, size: int, *, urgent: bool = True, owner: int = 0) -> Ticket:
        return Ticket(min(size, self._limit), urgent, owner)

    @asynccontextmanager
    async def hold(self, ticket: Ticket) -> AsyncIterator[None]:
        await self._acquire(ticket)
        try:
            yield
        finally:
            self._give_back(ticket)

    def raise_priority(self, ticket: Ticket) -> None:
        """Moves the ticket to the urgent queue, behind its owner's tickets there."""
        if ticket.urgent:
            return
        ticket.urgent = True
        if self._rest.remove(ticket):
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
        """Grants strictly in each queue's order, so that small requests never starve a large one."""
        for queue in (self._urgent, self._rest):
            while (ticket := queue.first()) is not None:
                if self._free_holders == 0 or self.held_bytes + ticket.size > self._limit:
                    return
                queue.pop_first()
                self._free_holders -= 1
                self.held_bytes += ticket.size
                self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
                ticket.waiter.set_result(None)


class _Turns:
    """Waiting tickets by owner, in the order of the owners' turns. No owner's queue is empty."""

    def __init__(self) -> None:
        self._queues: OrderedDict[int, deque[Ticket]] = OrderedDict()

    def append(self, ticket: Ticket) -> None:
        self._queues.setdefault(ticket.owner, deque()).append(ticket)

    def first(self) -> Ticket | None:
        """The next ticket whose wait is not cancelled. It stays in the queue."""
        while self._queues:
            owner, queue = next(iter(self._queues.items()))
            while queue and queue[0].waiter.cancelled():
                queue.popleft()
            if queue:
                return queue[0]
            del self._queues[owner]
        return None

    def pop_first(self) -> None:
        """Removes the ticket that `first` returned, and ends its owner's turn."""
        owner, queue = self._queues.popitem(last=False)
        queue.popleft()
        if queue:
            self._queues[owner] = queue

    def remove(self, ticket: Ticket) -> bool:
        """Removes the ticket; False if it does not wait here."""
        queue = self._queues.get(ticket.owner)
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        if not queue:
            del self._queues[ticket.owner]
        return True
