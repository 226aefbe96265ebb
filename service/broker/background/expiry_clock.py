"""Keeps the time by which a node's records expire. Checks the wall clock each second, and logs its steps.

The node compares its clock with the store's if the store runs on another machine. When the store opens, the comparison reveals
a wall clock that was wrong before the process began. After a step, it reveals that the step was a correction. A store on this
machine shares its clock, so it is not compared.

A wrong store clock is not distinguished from a wrong node clock. If the store's clock is behind, records expire by it until the
difference has lasted for `tidelog.clock.step.settle.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from service.broker.background.clock_watch import ClockWatch, Stepped
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import LogError
from storage_tiers.policy.segments import Now

log = logging.getLogger(__name__)

#: Seconds between two checks of the wall clock.
TICK_S = 1.0
#: Seconds between two comparisons with the store's clock, while the wall clock differs from the expected time.
ASK_S = 30.0


class ExpiryClock:
    """`store_ms` reads the time of a store on another machine (ms since 1970; LogError if it does not answer). It is None if
    there is no such store."""

    def __init__(
        self, clock: Clock, *, tolerance_ms: int, settle_ms: int, store_ms: Callable[[], Awaitable[int]] | None = None
    ) -> None:
        self._clock = clock
        self._store_ms = store_ms
        self._compared = False
        wall_ms, steady_ms = clock.unix_ms(), clock.steady_ms()
        self._watch = ClockWatch(wall_ms, steady_ms, tolerance_ms=tolerance_ms, settle_ms=settle_ms)

    @property
    def step_ms(self) -> int:
        """How far the wall clock is ahead of the expected time; 0 while it is trusted."""
        return self._watch.step_ms

    def now(self) -> Now:
        steady_ms = self._clock.steady_ms()
        return Now(self._watch.expiry_ms(self._clock.unix_ms(), steady_ms), steady_ms)

    def ahead_ms(self) -> int:
        """How far the wall clock is ahead of the time by which records expire. The grace of removed objects grows by it."""
        return max(0, self._clock.unix_ms() - self.now().expiry_ms)

    async def tick(self) -> None:
        self._log_steps(None)

    async def compare(self) -> None:
        """Compares the wall clock with the store's: once, and again while the wall clock counts as stepped. No effect if both
        share a clock."""
        if self._store_ms is None or (self._compared and not self.step_ms):
            return
        try:
            store_ms = await self._store_ms()
        except LogError as error:
            log.debug("the store does not report its time: %s", error)
            return
        # A step that has settled meanwhile stays settled.
        if self.step_ms or not self._compared:
            self._compared = True
            self._log_steps(store_ms or None)  # 0: the store's answers have no Date header

    def _log_steps(self, store_ms: int | None) -> None:
        news = self._watch.look(self._clock.unix_ms(), self._clock.steady_ms(), store_ms)
        if isinstance(news, Stepped):
            events.warning(log, "clock.stepped", ms=news.ms, settle_ms=self._watch.settle_ms)
        elif news is not None:
            events.info(log, "clock.settled", why=news.why)
