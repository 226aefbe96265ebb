"""Memory of what has been received and not done, and of what was answered and not sent: bytes of requests that are not whole
yet, or that are worked on or wait for that, and of large answers, of all connections together.

Each connection may hold a request of the largest size, and an answer; their sum is bounded here. Connections report the
bytes that they hold; the one that has to go is named here, and closed by the server. Does not promise: that the sum is never
exceeded, only that it is not once the turn is over.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_gateway.session import GatewaySession


class HeldMemory:
    """Within `limit_bytes`, buffers in which nothing lies counted: they are taken back when room is wanted."""

    def __init__(self, sessions: Mapping[int, GatewaySession], limit_bytes: int) -> None:
        self._sessions = sessions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def count(self, session: GatewaySession) -> None:
        """Counts what that connection holds now."""
        holds = session.connection.held_bytes + session.working_bytes
        self.held_bytes += holds - session.held_bytes
        session.held_bytes = holds

    def crowding(self, asking: GatewaySession, now: float) -> GatewaySession | None:
        """Who has to go, if all together hold too much: of those who hold most the one that was quiet longest, in seconds;
        then the one that asks. Not simply that one: requests that never get whole would lock everybody else out."""
        if self.held_bytes > self.limit_bytes:
            self.reclaim(now)
        if self.held_bytes <= self.limit_bytes:
            return None
        return max(self._sessions.values(), key=lambda s: (s.held_bytes, int(now - s.last_active), s is asking))

    def forget(self, session: GatewaySession) -> None:
        """It has closed."""
        self.held_bytes -= session.held_bytes

    def reclaim(self, active_before: float) -> None:
        """Takes the buffers of connections that have nothing in them, and have been quiet since then."""
        for session in self._sessions.values():
            if session.held_bytes and not session.connection.has_rest and session.last_active <= active_before:
                session.connection.discard()
                self.count(session)
