"""How many cold offsets are looked for at a time. One for all partitions of a broker.

Each is a task, and tasks that wait for the same things are woken together: ten thousand of them, which fetches of many
partitions may start, keep the loop from everybody else for half a second, again and again.

Invariants: at most `limit` places are taken; every future that was given out ends, without an error, once half of the places
are free. Not promised: that whoever is woken then finds one free. Who stopped waiting has left nothing in line.
"""

from __future__ import annotations

import asyncio

#: Tasks of so many take their next step within a few milliseconds, and keep all connections to the store busy.
MAX_HYDRATIONS = 256


class LookupPermits:
    def __init__(self, limit: int = MAX_HYDRATIONS) -> None:
        self._limit = limit
        self._room: asyncio.Future[None] | None = None
        self.taken = 0

    def take(self) -> asyncio.Future[None] | None:
        """None: a place is the caller's, until `give_back`. Else it asks again when this future has ended, which is shared by
        all who wait: whoever awaits it shields it."""
        if self.taken < self._limit:
            self.taken += 1
            return None
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def give_back(self) -> None:
        self.taken -= 1
        # Not at each one: all who wait look again.
        if self._room is not None and self.taken <= self._limit // 2:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)
