"""Computes the time by which records expire, even after a step of the wall clock. Pure.

Durations within this process are measured on a clock that never steps (`Clock.steady_ms`). Expiry must compare clients'
timestamps with the wall clock, and a wall clock that jumps a year ahead would delete a year of records. So expiry follows the
*expected* time: the last trusted wall clock plus the time passed since. A step never expires anything.

    trusted ──the wall clock differs from the expected time, or is ahead of the store's, by more than the tolerance──> stepped
    stepped ──it is set back, or the store's clock agrees, or the step lasts for `settle_ms`──> trusted

Invariants: the expiry time is never ahead of the wall clock, nor of the expected time; slewing (up to 1 in 1,000) is followed
and never counts as a step; many small steps add up to one.

A step that lasts for `settle_ms` is trusted even against the store's clock, which can be wrong too.

A wall clock that was wrong before this process began is noticed only if there is a store clock to compare it with.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A slewed clock gains or loses less than one millisecond in this many.
SLEW = 1000


@dataclass(frozen=True, slots=True)
class Stepped:
    """The wall clock is `ms` milliseconds ahead of the expected time (negative: behind)."""

    ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The wall clock is trusted again, for the reason `why`."""

    why: str


class ClockWatch:
    """Wall times are milliseconds since 1970. `tolerance_ms` is the largest difference that does not count as a step.
    `settle_ms` is how long a step must last to be trusted."""

    def __init__(self, wall_ms: int, steady_ms: int, *, tolerance_ms: int, settle_ms: int) -> None:
        self.tolerance_ms = tolerance_ms
        self.settle_ms = settle_ms
        self._offset_ms = wall_ms - steady_ms
        self._looked_ms = steady_ms
        self._stepped_at: int | None = None
        self._step_ms = 0

    @property
    def step_ms(self) -> int:
        """Milliseconds by which the wall clock is ahead of the expected time; 0 while it is trusted."""
        return self._step_ms

    def expiry_ms(self, wall_ms: int, steady_ms: int) -> int:
        """The time with which expiry compares timestamps."""
        return min(wall_ms, steady_ms + self._offset_ms)

    def look(self, wall_ms: int, steady_ms: int, store_ms: int | None = None) -> Stepped | Settled | None:
        """Compares the clocks; returns a change of state, or None. Called about every second; `store_ms` is the object store's
        time if it was just read."""
        if store_ms is not None and self._stepped_at is None and wall_ms - store_ms > self.tolerance_ms:
            self._offset_ms = store_ms - steady_ms
        elapsed, self._looked_ms = max(0, steady_ms - self._looked_ms), steady_ms
        off = wall_ms - steady_ms - self._offset_ms
        if abs(off) <= self.tolerance_ms:
            most = elapsed // SLEW + 1
            self._offset_ms += max(-most, min(most, off))
            return self._settle("it was set back") if self._stepped_at is not None else None
        self._step_ms = off
        if self._stepped_at is None:
            self._stepped_at = steady_ms
            return Stepped(off)
        agreed = store_ms is not None and abs(wall_ms - store_ms) <= self.tolerance_ms
        if agreed or steady_ms - self._stepped_at >= self.settle_ms:
            self._offset_ms = wall_ms - steady_ms
            return self._settle("the object store's clock agrees" if agreed else "it has lasted long enough")
        return None

    def _settle(self, why: str) -> Settled:
        self._stepped_at, self._step_ms = None, 0
        return Settled(why)
