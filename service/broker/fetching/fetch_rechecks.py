"""Bounds the time that waiting fetches take from each turn of the event loop.

A record wakes every fetch that waits for its partition, and each fetch reads all of its partitions again. With two thousand
fetches of two hundred partitions, that takes seconds. A recheck runs at once while the turn has time left for rechecks.
Otherwise it is queued, only once even if its fetch is woken several times meanwhile.

Invariant: a fetch of few partitions never waits behind fetches of many. The two kinds have separate queues. Each queue gets
half of the time for rechecks, and the unused part of the other's half.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from storage_tiers.turns import SLICE_S

#: A fetch of at most this many partitions takes negligible time to recheck.
FEW = 8

Recheck = Callable[[], None]


class FetchRechecks:
    """Used on one event loop only. `seconds` returns the time."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:  # noqa: TID251 - the shell
        self._seconds = seconds
        self._few: deque[Recheck] = deque()
        self._many: deque[Recheck] = deque()
        #: When this turn's time for rechecks ends; None while no recheck ran in this turn and none is queued.
        self._until: float | None = None

    @property
    def waiting(self) -> int:
        """The number of queued rechecks."""
        return len(self._few) + len(self._many)

    def add(self, recheck: Recheck, partitions: int) -> None:
        """Runs the recheck, over `partitions` partitions, now or in a later turn."""
        now = self._seconds()
        if self._until is None:
            self._until = now + SLICE_S
            asyncio.get_running_loop().call_soon(self._turn)
        if now < self._until and not self._few and not self._many:
            recheck()
        else:
            (self._few if partitions <= FEW else self._many).append(recheck)

    def _turn(self) -> None:
        began = self._seconds()
        self._run(self._few, began + SLICE_S / 2)
        self._run(self._many, max(began + SLICE_S, self._seconds() + SLICE_S / 2))
        self._run(self._few, began + SLICE_S)
        if self.waiting:
            # Rechecks added before the next turn queue behind these.
            self._until = began
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._until = None

    def _run(self, line: deque[Recheck], until: float) -> None:
        while line and self._seconds() < until:
            line.popleft()()
