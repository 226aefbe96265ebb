"""Retry delays: exponential, jittered, bounded. Pure; the caller sleeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage_tiers.clock import Rng


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """Times in seconds. Delay n, counted from 0, lies between half and the whole of min(first * 2^n, longest)."""

    first: float
    longest: float

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.longest:
            raise ValueError(
                f"a back-off needs 0 < first <= longest, not first={self.first} and longest={self.longest}"
            )


class Backoff:
    """Computes the delays of one series of failures. Up to half of a delay is jitter, so that callers that failed together do
    not retry together."""

    __slots__ = ("_rng", "_settings", "failures")

    def __init__(self, settings: BackoffSettings, rng: Rng) -> None:
        self._settings = settings
        self._rng = rng
        self.failures = 0

    def next_delay(self) -> float:
        """Seconds to wait after one more failure."""
        whole = min(self._settings.first * 2.0 ** min(self.failures, 62), self._settings.longest)
        self.failures += 1
        return self._rng.uniform(whole / 2, whole)

    def succeeded(self) -> None:
        self.failures = 0
