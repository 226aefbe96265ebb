"""The deadlines of a shard in one heap that is checked lazily, so moving a deadline later only writes a number.

A heartbeat moves its member's deadline. The heap checks the new deadline only when the old one passes. Pure: times in ms are
arguments.

Invariants: `due` returns a timer at most once per deadline, never before it, and in the order of the deadlines; a timer has at
most one live entry in the heap, besides stale ones, which `due` drops. One call of `due` looks at no more than `most` entries.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from itertools import count

#: A timer's deadline while it is off.
OFF = -1


class Timer:
    """One deadline: `at_ms`, or OFF. It is set through `Deadlines.set`. `owner` identifies the timer's owner for the caller of
    `due`."""

    __slots__ = ("_queued_ms", "at_ms", "owner")

    def __init__(self, owner: object) -> None:
        self.at_ms = OFF
        self.owner = owner
        #: The time of the timer's earliest entry in the heap, OFF without one.
        self._queued_ms = OFF


class Deadlines:
    """The timers of one shard. Times are in ms of a steady clock."""

    __slots__ = ("_heap", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()

    def set(self, timer: Timer, at_ms: int) -> None:
        """Sets the timer's deadline to `at_ms`."""
        timer.at_ms = at_ms
        if timer._queued_ms == OFF or at_ms < timer._queued_ms:
            self._push(timer)

    def clear(self, timer: Timer) -> None:
        """Stops the timer."""
        timer.at_ms = OFF

    def next_ms(self) -> int | None:
        """The time at which `due` may return a timer; None if there is none. It may be early, never late."""
        return self._heap[0][0] if self._heap else None

    def hold(self, timer: Timer, at_ms: int) -> None:
        """Marks a timer that `due` has returned as still due. `due` does not return it again unless it is set."""
        timer.at_ms = at_ms

    def is_still_due(self, timer: Timer, at_ms: int) -> bool:
        """Whether a timer that was held at `at_ms` has been neither set nor cleared since. If so, turns it off."""
        if timer.at_ms != at_ms:
            return False
        timer.at_ms = OFF
        return True

    def due(self, now_ms: int, most: int = sys.maxsize) -> Iterator[Timer]:
        """Yields the timers whose deadline is `now_ms` or earlier, each after it is turned off. Timers that the caller sets
        meanwhile are yielded too if they are due. Looks at `most` entries at most, because thousands of moved deadlines may
        have entries at the same time."""
        heap = self._heap
        while most > 0 and heap and heap[0][0] <= now_ms:
            most -= 1
            queued_ms, _, timer = heapq.heappop(heap)
            if queued_ms != timer._queued_ms:
                continue  # an earlier entry has taken its place
            timer._queued_ms = OFF
            if timer.at_ms == OFF:
                continue
            if timer.at_ms > now_ms:
                self._push(timer)
                continue
            timer.at_ms = OFF
            yield timer

    def _push(self, timer: Timer) -> None:
        timer._queued_ms = timer.at_ms
        heapq.heappush(self._heap, (timer.at_ms, next(self._order), timer))

    def __len__(self) -> int:
        """Entries of the heap, stale ones included."""
        return len(self._heap)
