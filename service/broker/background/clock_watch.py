"""Decides by which time records expire when somebody sets the wall clock: pure.

Durations within this process are measured on a clock that never steps (`Clock.steady_ms`). Expiry compares timestamps written
by others with the wall clock, and a wall clock that jumps a year ahead would delete a year of records. So expiry follows the
*expected* time: the last trusted wall clock plus the time passed since. Nothing ever expires because of a step.

    trusted ──wall clock more than the tolerance off what is expected, or ahead of the store's──> stepped
    stepped ──it is set back, or the store's clock says the same, or it stands for `settle_ms`──> trusted

Invariants: expiry time is never ahead of the wall clock, nor of what is expected; corrections by slewing (up to 1 in 1,000)
are followed and never called a step, and many small steps add up to one.

A wall clock that has stood for `settle_ms` against the store's is the truth: a store's clock can be wrong too.

Not promised: to notice that the wall clock was wrong before this process began, where no store's clock can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A clock that is slewed gains or loses less than one millisecond in this many.
SLEW = 1000


@dataclass(frozen=True, slots=True)
class Stepped:
    """The wall clock is `ms` ahead of what is expected (negative: behind)."""

    ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The wall clock is trusted again, and why."""

    why: str


class ClockWatch:
    """All times in milliseconds since 1970. `tolerance_ms` is what a wall clock may be off; `settle_ms` how long a step must
    stand until it is taken for the truth."""

    def __init__(self, wall_ms: int, steady_ms: int, *, tolerance_ms: int, settle_ms: int) -> None:
        self.tolerance_ms = tolerance_ms
        self.settle_ms = settle_ms
        self._offset_ms = wall_ms - steady_ms
        self._looked_ms = steady_ms
        self._stepped_at: int | None = None
        self._step_ms = 0

    @property
    def step_ms(self) -> int:
        """How far the wall clock is ahead of what is expected; 0 while it is trusted."""
        return self._step_ms

    def expiry_ms(self, wall_ms: int, steady_ms: int) -> int:
        """What expiry may compare timestamps with now."""
        return min(wall_ms, steady_ms + self._offset_ms)

    def look(self, wall_ms: int, steady_ms: int, store_ms: int | None = None) -> Stepped | Settled | None:
        """What is new. Called every second or so; `store_ms` is the object store's own time, where it was just asked."""
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
            return self._settle("the object store's clock agrees" if agreed else "it has stood long enough")
        return None

    def _settle(self, why: str) -> Settled:
        self._stepped_at, self._step_ms = None, 0
        return Settled(why)
