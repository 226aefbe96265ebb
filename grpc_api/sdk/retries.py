"""Retries while a node is unavailable: pauses between attempts, and the time limit."""

from __future__ import annotations

from grpc_api.channel import NodeChannel
from grpc_api.messages.errors import retriable
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import LogError

RETRY = BackoffSettings(first=0.05, longest=2.0)


class Patience:
    """For one series of attempts at a time. `retry_s`: seconds that failures may last."""

    def __init__(self, node: NodeChannel, retry_s: float) -> None:
        self._clock = node.clock
        self._backoff = Backoff(RETRY, node.rng)
        self._retry_s = retry_s
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        self._failing_since = None
        self._backoff.succeeded()

    async def pause(self, error: LogError) -> None:
        """Waits before the next attempt. Raises the error if it is final, or has lasted too long."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if not retriable(error) or now - self._failing_since >= self._retry_s:
            self._failing_since = None
            raise error
        await self._clock.sleep(self._backoff.next_delay())
