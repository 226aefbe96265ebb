"""What the gateway is told at its start, and the address that it takes: before its modules are needed, so that a start which
cannot have its port fails early."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from kafka_gateway.admission import ConnectionLimits
from kafka_gateway.connection import Limits
from kafka_gateway.options import Options


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`port` 0 takes a free one. Times in milliseconds, under Kafka's names where it has the setting."""

    host: str = "127.0.0.1"
    port: int = 0
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: `connections.max.idle.ms`
    connections_max_idle_ms: int = 600_000
    #: Memory for requests that are not whole yet, of all connections; who would exceed it is closed.
    receiving_bytes: int = 1 << 30
    #: How long `stop` lets answers be finished and sent.
    stop_timeout_ms: int = 5_000
    backlog: int = 1024


def listen(settings: GatewaySettings) -> socket.socket:
    """Takes the address; what connects waits in the kernel until `serve`. Raises OSError where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host, settings.port), family=family, backlog=settings.backlog)
