"""Bounds the memory that all connections together use for requests (incomplete, in progress or waiting) and for large
answers that are not sent yet.

One connection may hold a request of the largest size, and an answer. The pool limits the sum over all connections. Connections
report the bytes that they hold. The pool picks the connection to close, and the server closes it. The limit holds at the end of
a turn, but not within it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kafka_gateway.session import GatewaySession


class RequestMemoryPool:
    """The connections may hold `limit_bytes` together. Empty buffers that they keep also count, and are reclaimed when room is
    needed."""

    def __init__(self, sessions: Mapping[int, GatewaySession], limit_bytes: int) -> None:
        self._sessions = sessions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.held_by_address: Counter[str] = Counter()

    def count(self, session: GatewaySession) -> None:
        """Counts the bytes that the connection holds now."""
        holds = session.connection.held_bytes + session.working_bytes
        self._add(session, holds - session.held_bytes)
        session.held_bytes = holds

    def connection_to_close(self, growing: GatewaySession, now: float) -> GatewaySession | None:
        """Returns the connection to close, or None while the pool has room. The choice is the connection that holds the most
        bytes among those of the client address that holds the most bytes. Ties go to the connection that has been idle for
        longest, then to `growing`. If the pool always closed `growing`, or the largest connection, many requests that never
        complete would lock out all others."""
        if self.held_bytes > self.limit_bytes:
            self.reclaim(now)
        if self.held_bytes <= self.limit_bytes:
            return None
        address = max(self.held_by_address, key=self.held_by_address.__getitem__)
        of_address = (session for session in self._sessions.values() if session.address[0] == address)
        return max(of_address, key=lambda s: (s.held_bytes, int(now - s.last_active), s is growing))

    def forget(self, session: GatewaySession) -> None:
        """Stops counting a connection that has closed."""
        self._add(session, -session.held_bytes)

    def _add(self, session: GatewaySession, holds: int) -> None:
        if holds:
            self.held_bytes += holds
            self.held_by_address[session.address[0]] += holds
            if not self.held_by_address[session.address[0]]:
                del self.held_by_address[session.address[0]]

    def reclaim(self, active_before: float) -> None:
        """Reclaims the empty buffers of connections that have not been active since `active_before`."""
        for session in self._sessions.values():
            if session.held_bytes and not session.connection.has_rest and session.last_active <= active_before:
                session.connection.discard()
                self.count(session)
