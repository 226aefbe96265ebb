"""The time that a node's records expire by: looks at the clock each second, and says when somebody has set it.

Not promised: a comparison with the object store's own time. A step settles when it is undone or has stood long enough.
"""

from __future__ import annotations

import logging

from service.clock_watch import ClockWatch, Stepped
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.policy.segments import Now

log = logging.getLogger(__name__)

#: Seconds between two looks.
TICK_S = 1.0


class ExpiryClock:
    def __init__(self, clock: Clock, *, tolerance_ms: int, settle_ms: int) -> None:
        self._clock = clock
        wall_ms, steady_ms = clock.unix_ms(), clock.steady_ms()
        self._watch = ClockWatch(wall_ms, steady_ms, tolerance_ms=tolerance_ms, settle_ms=settle_ms)

    @property
    def step_ms(self) -> int:
        """How far the wall clock is ahead of what is expected; 0 while it is trusted."""
        return self._watch.step_ms

    def now(self) -> Now:
        steady_ms = self._clock.steady_ms()
        return Now(self._watch.expiry_ms(self._clock.unix_ms(), steady_ms), steady_ms)

    async def tick(self) -> None:
        news = self._watch.look(self._clock.unix_ms(), self._clock.steady_ms())
        if isinstance(news, Stepped):
            events.warning(log, "clock.stepped", ms=news.ms, settle_ms=self._watch.settle_ms)
        elif news is not None:
            events.info(log, "clock.settled", why=news.why)
