"""Memory of what has been received and not taken: bytes of requests that are not whole yet, of all connections together."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_gateway.session import Session


class HeldMemory:
    """Within `limit_bytes`, buffers in which nothing lies counted: they are taken back when room is wanted."""

    def __init__(self, sessions: Mapping[int, Session], limit_bytes: int) -> None:
        self._sessions = sessions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def fits(self, session: Session, now: float) -> bool:
        """Counts what that connection holds now; False if all together hold too much."""
        self.held_bytes += session.connection.held_bytes - session.held_bytes
        session.held_bytes = session.connection.held_bytes
        if self.held_bytes > self.limit_bytes:
            self.reclaim(now)
        return self.held_bytes <= self.limit_bytes

    def forget(self, session: Session) -> None:
        """It has closed."""
        self.held_bytes -= session.held_bytes

    def reclaim(self, active_before: float) -> None:
        """Takes the buffers of connections that have nothing in them."""
        for session in self._sessions.values():
            if session.held_bytes and not session.connection.has_rest and session.last_active <= active_before:
                session.connection.discard()
                self.held_bytes -= session.held_bytes
                session.held_bytes = 0
