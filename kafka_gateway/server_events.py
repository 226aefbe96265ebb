"""The log events about client connections. Any client can provoke these events, so `storage_tiers.events` limits their rate."""

from __future__ import annotations

import logging

from kafka_gateway.session import GatewaySession
from storage_tiers import events

log = logging.getLogger("kafka_gateway.server")


def refused(session: GatewaySession, error: Exception) -> None:
    """Logs a malformed frame, or a request that is not served. The connection is then closed."""
    events.provoked(log, "request.refused", by=session.address[0], server="kafka", client=_of(session), error=error)


def defect(session: GatewaySession, error: BaseException) -> None:
    events.error(log, "request.defect", server="kafka", client=_of(session), defect=error)


def closed(session: GatewaySession, reason: str) -> None:
    events.provoked(log, "connection.closed", by=session.address[0], client=_of(session), reason=reason)


def over_quota(address: tuple[str, int], bound: str) -> None:
    events.provoked(log, "connection.refused", by=address[0], client=f"{address[0]}:{address[1]}", bound=bound)


def held_back(bound: str, connections: int) -> None:
    """Logs that new connections wait in the kernel's queue."""
    events.provoked(log, "connections.held_back", by=bound, bound=bound, connections=connections)


def not_accepted(error: OSError) -> None:
    events.provoked(log, "connection.not_accepted", by="", error=error)


def pool_is_full(session: GatewaySession, held_bytes: int, bound_bytes: int) -> None:
    """Logs that this connection is closed because the request memory pool is full."""
    events.provoked(log, "memory.refused", by="", client=_of(session), held_bytes=held_bytes, bound_bytes=bound_bytes)


def _of(session: GatewaySession) -> str:
    return f"{session.address[0]}:{session.address[1]}"
