"""Detects that the node is silent, because librdkafka retries silently."""

from __future__ import annotations

from collections.abc import Callable

#: Seconds of silence before a report. Each silence is reported once.
SILENCE_S = 3.0


class Silence:
    """Measures how long the node has been silent. `now` returns seconds of a monotonic clock."""

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or monotonic
        self._heard_at = self._now()

    def heard(self) -> None:
        self._heard_at = self._now()

    def begin(self) -> None:
        """Restarts the measurement after a pause that the node did not cause. A reported silence is not reported again."""
        self._heard_at = max(self._heard_at, self._now())

    def due(self) -> bool:
        """Whether to report the silence now."""
        if self._now() - self._heard_at < SILENCE_S:
            return False
        self._heard_at = float("inf")
        return True


def monotonic() -> float:
    from storage_tiers.clock import SystemClock  # imports asyncio, which other commands do not need

    return SystemClock().monotonic()
