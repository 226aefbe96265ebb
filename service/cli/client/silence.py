"""Saying that nothing comes, while librdkafka goes on asking by itself and says nothing of it."""

from __future__ import annotations

from collections.abc import Callable

#: After so many seconds it is said, once for each silence.
SILENCE_S = 3.0


class Silence:
    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or _monotonic
        self._heard_at = self._now()

    def heard(self) -> None:
        self._heard_at = self._now()

    def begin(self) -> None:
        """What was before was no silence of the node's. One that was said is not said again."""
        self._heard_at = max(self._heard_at, self._now())

    def due(self) -> bool:
        """Whether it is to be said now."""
        if self._now() - self._heard_at < SILENCE_S:
            return False
        self._heard_at = float("inf")
        return True


def _monotonic() -> float:
    from storage_tiers.clock import SystemClock  # which imports asyncio, and other commands need none

    return SystemClock().monotonic()
