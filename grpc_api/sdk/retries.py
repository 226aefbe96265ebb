"""Retries while a node is unavailable: pauses between attempts, and the time limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from grpc_api.channel import NodeChannel
from grpc_api.contract.coordinator_errors import CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator
from grpc_api.messages.errors import retriable
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import LogError

RETRY = BackoffSettings(first=0.05, longest=2.0)
#: The errors of a coordinator whose topic is being created, or that is being loaded or has moved.
COORDINATOR_AWAY = (CoordinatorNotAvailable, CoordinatorLoading, NotCoordinator)
#: Seconds for which requests to coordinators are retried.
COORDINATOR_RETRY_S = 30.0

Answer = TypeVar("Answer")


class Patience:
    """Pauses between attempts, for one series of attempts at a time. `retry_s` is the time in seconds that failures may
    last."""

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


async def from_coordinator(
    node: NodeChannel,
    ask: Callable[[], Awaitable[Answer]],
    *,
    passing: tuple[type[LogError], ...] = COORDINATOR_AWAY,
) -> Answer:
    """The answer of `ask`, which is called again after `passing` errors, for at most COORDINATOR_RETRY_S."""
    patience = Patience(node, COORDINATOR_RETRY_S)
    while True:
        try:
            return await ask()
        except LogError as error:
            if not isinstance(error, passing):
                raise
            await patience.pause(error)
