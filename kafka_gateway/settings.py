"""All settings of the gateway and their defaults.

A node makes them from its configs (`service.serve.servers`). `options.py` has the other objects that handlers need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grpc_api.contract.topics import Endpoint
from kafka_gateway.client import PLAINTEXT

_UNBOUNDED = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one connection. Sizes are in bytes. Comments name the config that sets a limit."""

    #: `socket.request.max.bytes`
    request_max_bytes: int = 100 << 20
    #: No request starts while more than this is unsent.
    unsent_bytes: int = 1 << 20
    #: No request starts while this many answers are pending.
    requests_in_flight: int = 1000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`overrides` replace `per_address` for single addresses; `a_second` is a rate. `total_by` names the config that sets
    `total`, for the log."""

    total: int = 10_000
    total_by: str = "max.connections"
    per_address: int = _UNBOUNDED
    overrides: Mapping[str, int] = field(default_factory=dict)
    a_second: int = _UNBOUNDED


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits apply to all listeners together. Times are in milliseconds. Comments name the config that gives a value."""

    #: The listeners, whose names are distinct. Port 0 takes a free port; an empty host means every address of this machine.
    listeners: tuple[Endpoint, ...] = (Endpoint(PLAINTEXT, "127.0.0.1", 0),)
    limits: Limits = field(default_factory=Limits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: `connections.max.idle.ms`
    connections_max_idle_ms: int = 600_000
    #: `max.incremental.fetch.session.cache.slots`
    fetch_session_slots: int = 1000
    #: `max.request.partition.size.limit`: partitions in one answer of DescribeTopicPartitions.
    described_partitions: int = 2000
    telemetry_max_bytes: int = 1 << 20
    #: Memory of all connections for incomplete and delayed requests and unsent answers (`request_memory_pool.py`).
    request_memory_bytes: int = 1 << 30
    #: How long `stop` waits for answers to be finished and sent.
    stop_timeout_ms: int = 5_000
