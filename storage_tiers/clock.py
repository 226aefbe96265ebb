"""Time and chance as arguments: the one module that touches the real ones."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Protocol


class Clock(Protocol):
    def unix_ms(self) -> int:
        """Wall time in milliseconds since 1970, UTC. May step: for timestamps and for comparing with them."""

    def steady_ms(self) -> int:
        """Milliseconds since 1970 by the wall clock at this clock's beginning and what has passed since: never steps, and
        counts the time that the machine slept. For durations (ages, pauses) that are kept beside timestamps."""

    def monotonic(self) -> float:
        """Seconds since some start. Never steps back."""

    async def sleep(self, seconds: float) -> None: ...


#: Counts on while the machine is suspended, where the system has such a clock (Linux).
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
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


class ManualClock:
    """Stands still until told. `sleep` returns once `advance` has passed its moment."""

    def __init__(self, unix_ms: int = 1_700_000_000_000) -> None:
        self._start = unix_ms
        self._stepped = 0
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def unix_ms(self) -> int:
        return self.steady_ms() + self._stepped

    def steady_ms(self) -> int:
        return self._start + int(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._elapsed + seconds, waiter))
        await waiter

    def step(self, ms: int) -> None:
        """Somebody sets the wall clock, by so much more."""
        self._stepped += ms

    def advance(self, seconds: float) -> None:
        self._elapsed += seconds
        due = [w for at, w in self._sleepers if at <= self._elapsed]
        self._sleepers = [(at, w) for at, w in self._sleepers if at > self._elapsed]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)


class Rng(Protocol):
    def token(self, size: int) -> bytes:
        """`size` random bytes: ids of topics, uploads, commits, starts."""

    def uniform(self, low: float, high: float) -> float:
        """Jitter."""


class SystemRng:
    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class SeededRng:
    """Repeatable: the same seed gives the same ids and jitter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
