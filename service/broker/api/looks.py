"""Looks of fetches that wait, within a share of each turn of the event loop.

A record wakes every fetch that waits for its partition, and each looks at all of its partitions again: two thousand fetches of
two hundred partitions take seconds for that. A look is made at once while its turn of the loop has time left for looks, and
else waits in line, once however often it is woken meanwhile.

Invariant: a fetch of few partitions does not wait behind fetches of many; each of the two lines has half of a turn, and the
time that the other leaves of its half.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from storage_tiers.turns import SLICE_S

#: Partitions of a fetch that is looked at in no time.
FEW = 8

Look = Callable[[], None]


class Looks:
    """Used on one event loop only. `seconds` tells the time."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:  # noqa: TID251 - the shell
        self._seconds = seconds
        self._few: deque[Look] = deque()
        self._many: deque[Look] = deque()
        #: Until when looks may be made in this turn; None before the first one.
        self._until: float | None = None

    @property
    def waiting(self) -> int:
        """Looks in line."""
        return len(self._few) + len(self._many)

    def add(self, look: Look, partitions: int) -> None:
        """Makes the look, of so many partitions, now or in a later turn."""
        now = self._seconds()
        if self._until is None:
            self._until = now + SLICE_S
            asyncio.get_running_loop().call_soon(self._turn)
        if now < self._until and not self._few and not self._many:
            look()
        else:
            (self._few if partitions <= FEW else self._many).append(look)

    def _turn(self) -> None:
        began = self._seconds()
        self._make(self._few, began + SLICE_S / 2)
        self._make(self._many, max(began + SLICE_S, self._seconds() + SLICE_S / 2))
        self._make(self._few, began + SLICE_S)
        if self.waiting:
            # What is woken before the next turn has its place behind these.
            self._until = began
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._until = None

    def _make(self, line: deque[Look], until: float) -> None:
        while line and self._seconds() < until:
            line.popleft()()
