"""Time and randomness under a test's control: a clock that stands still until it is advanced, and ids that repeat."""

from __future__ import annotations

import asyncio
import random


class ManualClock:
    """Stands still until advanced. `sleep` returns once `advance` has passed its end."""

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
        """Moves the wall clock by `ms`, as if it had been set."""
        self._stepped += ms

    def advance(self, seconds: float) -> None:
        self._elapsed += seconds
        due = [w for at, w in self._sleepers if at <= self._elapsed]
        self._sleepers = [(at, w) for at, w in self._sleepers if at > self._elapsed]
        for waiter in due:
            if not waiter.done():
                waiter.set_result(None)


class SeededRng:
    """Repeatable: the same seed gives the same ids and jitter."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
