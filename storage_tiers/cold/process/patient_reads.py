"""Retries reads until a deadline while the store does not answer. Only reads are retried, because repeating one is harmless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierUnavailable

T = TypeVar("T")

#: Returns the store; the first call opens it.
GetStore = Callable[[], Awaitable[ObjectStore]]


class PatientReads:
    """`repeated` counts retries."""

    def __init__(self, settings: TierSettings, clock: Clock, rng: Rng) -> None:
        self._deadline_s = settings.read_deadline_s
        self._backoff = BackoffSettings(settings.first_retry_s, settings.longest_retry_s)
        self._clock = clock
        self._rng = rng
        self.repeated = 0

    async def retry_until_deadline(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt` with back-off; TierUnavailable at the deadline, with the store's last error."""
        backoff = Backoff(self._backoff, self._rng)
        failure = "no answer yet"

        async def repeat() -> T:
            nonlocal failure
            while True:
                try:
                    return await attempt()
                except TierUnavailable as error:
                    failure = str(error)
                self.repeated += 1
                await self._clock.sleep(backoff.next_delay())

        try:
            async with asyncio.timeout(self._deadline_s):
                return await repeat()
        except TimeoutError as error:
            raise TierUnavailable(
                f"the store gave no {what} within {self._deadline_s:g} s ({failure}); retry"
            ) from error
