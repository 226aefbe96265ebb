"""The clock and the source of random numbers, both passed as arguments. The linter refuses the machine's own in other modules,
except where a `noqa: TID251` gives the reason."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    """A clock, passed as an argument. Milliseconds count from 1970, seconds from an arbitrary start."""

    def unix_ms(self) -> int:
        """Wall time in milliseconds since 1970, UTC. May step; use it for timestamps and comparisons with them."""

    def steady_ms(self) -> int:
        """Milliseconds since 1970: the wall time when this clock was created plus the time elapsed since. Never steps, and
        includes the time that the machine slept. Use it to compute ages that must not jump when the wall time is
        corrected."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. Never steps back."""

    async def sleep(self, seconds: float) -> None: ...


#: A clock that also counts the time during which the machine is suspended, if the system has one (Linux).
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns() - time.clock_gettime_ns(_ELAPSED)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        return (self._began_ns + time.clock_gettime_ns(_ELAPSED)) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Rng(Protocol):
    """A source of random numbers, passed as an argument."""

    def token(self, size: int) -> bytes:
        """`size` random bytes, for ids of topics, segments, commits and starts."""

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high], for jitter."""


class SystemRng:
    """The operating system's random bytes, and Python's generator for jitter."""

    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)
