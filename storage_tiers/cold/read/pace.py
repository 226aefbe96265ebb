"""The rate at which chunks are fetched while clients produce: cold reads yield when processor time is short. Pure.

A backfill uses all the capacity it can get. On a small machine its downloads keep every processor busy, and each record
produced meanwhile waits for a time slice, in the broker and in the client. The symptom is the share of time in which the event
loop was ready to run but did not run. The rate of fetches falls step by step while that share is above `most_waiting`, and
rises again while it is not. With spare processor time nothing is slowed for long.

Invariants: fetches are delayed only if records were appended within the last QUIET_S, and the rate never falls below
LEAST_RATE. A fetch with a waiting reader is not delayed, but counts against the rate, so that read-ahead makes up for it. The
latency of producers is not bounded, and chunks already in the cache are sent at full speed.
"""

from __future__ import annotations

from collections.abc import Callable

#: Seconds between measurements of the event loop.
PERIOD_S = 0.1
#: Fetches are not slowed after this many seconds without an append, and the rate is unknown after this many seconds without a
#: fetch.
QUIET_S = 1.0
#: Bytes per second: the lowest initial rate, and the lowest rate, at which a lagging consumer can still catch up.
FIRST_RATE = 64 << 20
LEAST_RATE = 32 << 20
#: The factors by which one step changes the rate: a rise before the rate was ever too high, a later rise, and a fall.
RISE_AT_FIRST, RISE, FALL = 1.25, 1.05, 0.9
#: A rate that is not used up grows to at most this many times the achieved one.
MOST_UNUSED = 2.0
#: The most seconds of delay that undelayed fetches may impose on later ones.
MOST_OWED_S = 1.0


class Pace:
    """`appended` counts appends so far. `waited_s` is the total of seconds that the event loop has waited for a processor.
    `most_waiting` is the share of time, 0 to 1, that the event loop may wait; 1 never slows fetches."""

    def __init__(
        self, appended: Callable[[], int], waited_s: Callable[[], float], most_waiting: Callable[[], float]
    ) -> None:
        self._appended = appended
        self._waited_s = waited_s
        self._most_waiting = most_waiting
        self._looked_at = self._produced_at = float("-inf")
        self._seen_appended = 0
        self._seen_waited_s = 0.0
        self._fetched = 0
        self._rising_at_first = True
        self._next = float("-inf")
        #: Bytes per second; None while nothing is delayed.
        self.rate: float | None = None

    def delay(self, size: int, now: float, *, urgent: bool) -> float:
        """Seconds to wait before `size` bytes are fetched. The bytes count as fetched from this call on. Callers take turns:
        each waits that long before the next one calls. `urgent` fetches get 0 and call at any time."""
        if now - self._looked_at >= PERIOD_S:
            self._adjust(now)
        self._fetched += size
        if self.rate is None:
            return 0.0
        begin = max(self._next, now)
        self._next = begin + size / self.rate
        if urgent:
            self._next = min(self._next, now + MOST_OWED_S)
            return 0.0
        return begin - now

    def _adjust(self, now: float) -> None:
        elapsed, self._looked_at = now - self._looked_at, now
        appended, waited_s = self._appended(), self._waited_s()
        waiting, self._seen_waited_s = (waited_s - self._seen_waited_s) / elapsed, waited_s
        achieved, self._fetched = self._fetched / elapsed, 0
        if appended != self._seen_appended:
            self._seen_appended, self._produced_at = appended, now
        most = self._most_waiting()
        if now - self._produced_at > QUIET_S or most >= 1:
            self.rate = None
        elif self.rate is None or elapsed > QUIET_S:
            # Fetches ran at full speed until a client produced: begin with half of that.
            self.rate = max(FIRST_RATE, achieved / 2)
            self._rising_at_first = True
            self._next = now
        elif waiting > most:
            self.rate = max(LEAST_RATE, self.rate * FALL)
            self._rising_at_first = False
        else:
            faster = self.rate * (RISE_AT_FIRST if self._rising_at_first else RISE)
            self.rate = max(self.rate, min(faster, MOST_UNUSED * achieved))
