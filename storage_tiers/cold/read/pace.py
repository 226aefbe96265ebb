"""How fast chunks are fetched while clients produce: where processors are short, cold reads yield. Pure.

A backfill takes what it is given. On a small machine its downloads keep every processor busy, and each record produced beside
it waits for a time slice, in the broker and in the client. The sign of that is the share of time in which the event loop was
ready to run and did not; beyond `most_waiting` fetches become slower step by step, else faster again. Where processors are
to spare nothing is slowed for long.

Invariants: nothing is held back unless records were appended within the last QUIET_S, and never below LEAST_RATE; what
somebody waits for is not held back, but counts, so that what is read ahead makes up for it. Not promised: any latency; that
what is in the cache already is sent more slowly.
"""

from __future__ import annotations

from collections.abc import Callable

#: Seconds between looks at how the event loop fares.
PERIOD_S = 0.1
#: Seconds without an append after which nobody produces; also without a fetch, after which the rate is not known any more.
QUIET_S = 1.0
#: Bytes a second: where it begins, and what is never refused, so that who lags can catch up whatever else goes on.
FIRST_RATE = 64 << 20
LEAST_RATE = 32 << 20
#: Factors of a step: up until it was too fast for the first time, up from then on, and down.
RISE_AT_FIRST, RISE, FALL = 1.25, 1.05, 0.9
#: A rate that is not made use of grows no further than to so many times what is.
MOST_UNUSED = 2.0
#: Seconds of fetches that may be owed for what was not held back.
MOST_OWED_S = 1.0


class Pace:
    """`appended` counts what was appended so far. `waited_s` are the seconds that the event loop has waited for a processor
    so far. `most_waiting` is the share of time, 0 to 1, that it may; 1 slows nothing."""

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
        #: Bytes a second; None while nothing is held back.
        self.rate: float | None = None

    def delay(self, size: int, now: float, *, urgent: bool) -> float:
        """Seconds to wait before `size` bytes are fetched, which are taken for fetched then. Asked by one at a time, who waits
        for so long before the next asks, except `urgent` ones, who are told 0."""
        if now - self._looked_at >= PERIOD_S:
            self._look(now)
        self._fetched += size
        if self.rate is None:
            return 0.0
        begin = max(self._next, now)
        self._next = begin + size / self.rate
        if urgent:
            self._next = min(self._next, now + MOST_OWED_S)
            return 0.0
        return begin - now

    def _look(self, now: float) -> None:
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
            # What was fetched at full speed until somebody produced says what half of it is.
            self.rate = max(FIRST_RATE, achieved / 2)
            self._rising_at_first = True
            self._next = now
        elif waiting > most:
            self.rate = max(LEAST_RATE, self.rate * FALL)
            self._rising_at_first = False
        else:
            faster = self.rate * (RISE_AT_FIRST if self._rising_at_first else RISE)
            self.rate = max(self.rate, min(faster, MOST_UNUSED * achieved))
