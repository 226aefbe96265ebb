"""The memory of all connections together for requests that are incomplete, in progress or waiting, and for large answers
that are not sent yet.

One connection may hold a request of the largest size, and an answer; this pool bounds their sum. Connections report the bytes
that they hold; the pool picks the connection to close and the server closes it. Does not promise: that the bound holds within
a turn, only at its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_gateway.session import GatewaySession


class RequestMemoryPool:
    """At most `limit_bytes`. Kept buffers that are empty count too, and are taken back when room is needed."""

    def __init__(self, sessions: Mapping[int, GatewaySession], limit_bytes: int) -> None:
        self._sessions = sessions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def count(self, session: GatewaySession) -> None:
        """Counts the bytes that the connection holds now."""
        holds = session.connection.held_bytes + session.working_bytes
        self.held_bytes += holds - session.held_bytes
        session.held_bytes = holds

    def connection_to_close(self, growing: GatewaySession, now: float) -> GatewaySession | None:
        """None unless the pool is full. Otherwise the connection that holds most; among equals the one idle for most seconds,
        then `growing`. Closing always `growing` would let requests that never complete lock out all others."""
        if self.held_bytes > self.limit_bytes:
            self.reclaim(now)
        if self.held_bytes <= self.limit_bytes:
            return None
        return max(self._sessions.values(), key=lambda s: (s.held_bytes, int(now - s.last_active), s is growing))

    def forget(self, session: GatewaySession) -> None:
        """The connection has closed."""
        self.held_bytes -= session.held_bytes

    def reclaim(self, active_before: float) -> None:
        """Takes back the empty buffers of connections that were last active before then."""
        for session in self._sessions.values():
            if session.held_bytes and not session.connection.has_rest and session.last_active <= active_before:
                session.connection.discard()
                self.count(session)
