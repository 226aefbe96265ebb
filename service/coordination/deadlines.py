"""The deadlines of a shard in one heap that is checked lazily, so moving a deadline later only writes a number.

A heartbeat moves its member's deadline. The heap checks the new deadline only when the old one passes. Pure: times in ms are
arguments.

Clients that come and go would each leave an entry until its time, which may be half an hour away. So entries of timers that are
off are dropped early when they are the larger part of the heap. The other entries move to a new heap, a few with each change,
because moving thousands at once would delay the loop.

Invariants: `due` returns a timer at most once per deadline, never before it, and in the order of the deadlines; a timer has at
most one live entry, besides stale ones, which are dropped. One call of `due` looks at no more than `most` entries.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from itertools import count

#: A timer's deadline while it is off.
OFF = -1
#: The number of stopped timers' entries that are never dropped early, and the number of entries that move to the new heap with
#: each change.
MOST_OFF, MOVED = 1_000, 8

_Heap = list[tuple[int, int, "Timer"]]


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

    __slots__ = ("_heap", "_off", "_old", "_order")

    def __init__(self) -> None:
        self._heap: _Heap = []
        #: The previous heap, while its entries move to the present one.
        self._old: _Heap = []
        #: Timers that were cleared while they had an entry, since entries last began to move.
        self._off = 0
        self._order = count()

    def set(self, timer: Timer, at_ms: int) -> None:
        """Sets the timer's deadline to `at_ms`."""
        timer.at_ms = at_ms
        if timer._queued_ms == OFF or at_ms < timer._queued_ms:
            self._push(timer)

    def postpone(self, timer: Timer, at_ms: int) -> bool:
        """Does the same as `set` if `next_ms` stays the same; otherwise returns False and changes nothing."""
        if timer._queued_ms == OFF or at_ms < timer._queued_ms:
            return False
        timer.at_ms = at_ms
        return True

    def clear(self, timer: Timer) -> None:
        """Stops the timer."""
        if timer.at_ms != OFF and timer._queued_ms != OFF:
            self._off += 1
            if self._off > MOST_OFF and self._off > len(self) // 2 and not self._old:
                self._old, self._heap, self._off = self._heap, [], 0
        timer.at_ms = OFF
        if self._old:
            self._move()

    def next_ms(self) -> int | None:
        """The time at which `due` may return a timer; None if there is none. This time may be too early, never too late."""
        heap = self._earlier()
        return heap[0][0] if heap else None

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
        meanwhile are yielded too if they are due. Examines at most `most` entries, because thousands of moved deadlines may
        have entries at the same time."""
        while most > 0 and (heap := self._earlier()) and heap[0][0] <= now_ms:
            most -= 1
            queued_ms, _, timer = heapq.heappop(heap)
            if queued_ms != timer._queued_ms:
                continue  # a stale entry: the timer has got an earlier one
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
        if self._old:
            self._move()

    def _earlier(self) -> _Heap:
        """The heap with the earliest entry."""
        if not self._old or (self._heap and self._heap[0] < self._old[0]):
            return self._heap
        return self._old

    def _move(self) -> None:
        """Moves a few entries from the end of the old heap, which stays a heap without them. Drops entries of timers that are
        off, and stale entries."""
        old = self._old
        for _ in range(min(MOVED, len(old))):
            entry = old.pop()
            queued_ms, _, timer = entry
            if queued_ms != timer._queued_ms:
                continue
            if timer.at_ms == OFF:
                timer._queued_ms = OFF
            else:
                heapq.heappush(self._heap, entry)

    def __len__(self) -> int:
        """The number of entries, including stale ones."""
        return len(self._heap) + len(self._old)
