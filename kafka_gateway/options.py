"""The options of handlers besides the core: settings, clock, random numbers, and shared state."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_gateway.client import RequestContext
from kafka_gateway.settings import GatewaySettings
from kafka_gateway.telemetry import Telemetry
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.turns import TurnScheduler


@dataclass(frozen=True, slots=True)
class Options:
    """The parts that every handler may use besides the core. A server has one object for all connections."""

    settings: GatewaySettings = field(default_factory=GatewaySettings)
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRng)
    #: The client whose request is being started.
    request_context: RequestContext = field(default_factory=RequestContext)
    #: Receives metrics that clients push (KIP-714). Without a receiver, no client is asked to push.
    telemetry: Telemetry = field(
        default_factory=lambda: Telemetry(None, max_bytes=GatewaySettings().telemetry_max_bytes)
    )
    #: Shares the event loop among requests that take long.
    scheduler: TurnScheduler = field(default_factory=TurnScheduler)
