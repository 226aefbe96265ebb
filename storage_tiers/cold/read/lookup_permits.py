"""Bounds how many cold offsets a broker looks up at a time, over all partitions.

Each lookup is a task, and tasks that wait for the same download wake together. Fetches of many partitions could start ten
thousand of them, which would block the event loop for half a second each time.

Invariants: at most `limit` permits are taken. Every future that `take` returned ends, without an error, once half of the
permits are free. The permits may be taken again before a woken caller asks. There is no queue: a caller that stops waiting
leaves nothing behind.
"""

from __future__ import annotations

import asyncio

#: This many tasks take their next step within a few milliseconds, and keep all connections to the store busy.
MAX_HYDRATIONS = 256


class LookupPermits:
    """`taken` permits of `limit` are in use. A caller that has taken one gives it back."""

    def __init__(self, limit: int = MAX_HYDRATIONS) -> None:
        self._limit = limit
        self._room: asyncio.Future[None] | None = None
        self.taken = 0

    def take(self) -> asyncio.Future[None] | None:
        """Takes a permit, which the caller has until `give_back`, and returns None. If no permit is free, returns a future; the
        caller tries again when the future is done. All waiting callers share it: await it shielded."""
        if self.taken < self._limit:
            self.taken += 1
            return None
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        return self._room

    def give_back(self) -> None:
        self.taken -= 1
        # Does not wake waiting callers at each return, because all of them would retry.
        if self._room is not None and self.taken <= self._limit // 2:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)
