"""Connection quotas: in total, per address, and per second. Pure; the acceptor applies them.

The quotas work as in Kafka's SocketServer. At `max.connections`, new connections wait until one closes. Beyond
`max.connections.per.ip` and its overrides, a new connection is closed. Beyond `max.connection.creation.rate`, new connections
wait. All listeners share the quotas.
"""

from __future__ import annotations

from collections import Counter

from kafka_gateway.settings import ConnectionLimits

#: The rate is counted in windows of this length.
WINDOW_S = 1.0


class ConnectionQuotas:
    """Counts open connections. `limits` may be replaced at any time; open connections stay open."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._of_address: Counter[str] = Counter()
        self.connections = 0
        self._window_began = -WINDOW_S
        self._window_count = 0

    @property
    def is_full(self) -> bool:
        """Whether the total is reached, so that no connection is accepted until one closes."""
        return self.connections >= self.limits.total

    def wait_s(self, now: float) -> float:
        """Seconds until the creation rate allows the next connection; 0 if it allows one at once. `now` is in seconds."""
        if now - self._window_began >= WINDOW_S:
            self._window_began, self._window_count = now, 0
        if self._window_count < self.limits.a_second:
            return 0.0
        return self._window_began + WINDOW_S - now

    def add(self, address: str) -> bool:
        """Counts a new connection from `address`. Returns False if the connection must be closed."""
        self._window_count += 1
        if self._of_address[address] >= self.limits.overrides.get(address, self.limits.per_address):
            if not self._of_address[address]:
                del self._of_address[address]
            return False
        self._of_address[address] += 1
        self.connections += 1
        return True

    def remove(self, address: str) -> None:
        """Called when a connection from `address` has closed."""
        self.connections -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
