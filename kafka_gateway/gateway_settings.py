"""What the gateway is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from grpc_api.contract.topics import Endpoint
from kafka_gateway.admission import ConnectionLimits
from kafka_gateway.client import PLAINTEXT
from kafka_gateway.connection import Limits
from kafka_gateway.options import Options


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Bounds hold for all listeners together. Times in milliseconds, under Kafka's names where it has the setting."""

    #: Each by another name. Port 0 takes a free one, an empty host is every address of this machine.
    listeners: tuple[Endpoint, ...] = (Endpoint(PLAINTEXT, "127.0.0.1", 0),)
    limits: Limits = field(default_factory=Limits)
    options: Options = field(default_factory=Options)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: `connections.max.idle.ms`
    connections_max_idle_ms: int = 600_000
    #: Memory for requests that are not whole yet, of all connections; who would exceed it is closed.
    receiving_bytes: int = 1 << 30
    #: How long `stop` lets answers be finished and sent.
    stop_timeout_ms: int = 5_000
