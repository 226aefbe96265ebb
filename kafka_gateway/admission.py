"""How many connections are let in: in all, from one address, and in a second. Pure; the server asks and acts.

Kafka's `max.connections` (and a wait for one to close), `max.connections.per.ip` with its overrides (the new one is closed)
and `max.connection.creation.rate` (those beyond wait), as its SocketServer has them, for all listeners together.
"""

from __future__ import annotations

from collections import Counter

from kafka_gateway.settings import ConnectionLimits

#: The rate is counted over this long.
WINDOW_S = 1.0


class Admission:
    """Counts who is in. `limits` may be replaced at any time; nobody who is in is put out."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._of_address: Counter[str] = Counter()
        self.inside = 0
        self._window_began = -WINDOW_S
        self._window_count = 0

    @property
    def is_full(self) -> bool:
        """Nobody may come in before one leaves."""
        return self.inside >= self.limits.total

    def wait_s(self, now: float) -> float:
        """Seconds until the next one may come in as far as the rate goes; 0 for at once."""
        if now - self._window_began >= WINDOW_S:
            self._window_began, self._window_count = now, 0
        if self._window_count < self.limits.a_second:
            return 0.0
        return self._window_began + WINDOW_S - now

    def enter(self, address: str) -> bool:
        """Whether one more from that address may stay; it is counted then."""
        self._window_count += 1
        if self._of_address[address] >= self.limits.overrides.get(address, self.limits.per_address):
            if not self._of_address[address]:
                del self._of_address[address]
            return False
        self._of_address[address] += 1
        self.inside += 1
        return True

    def leave(self, address: str) -> None:
        self.inside -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
