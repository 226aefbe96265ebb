"""What handlers are told beside the core: the settings, time and chance, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_gateway.client import Asking
from kafka_gateway.settings import GatewaySettings
from kafka_gateway.telemetry import Telemetry
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.events import Seldom
from storage_tiers.turns import Lane


@dataclass(frozen=True, slots=True)
class Options:
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRng)
    #: Whose request is being started.
    asking: Asking = field(default_factory=Asking)
    #: Who pushes metrics (KIP-714); without a receiver nobody is told to.
    telemetry: Telemetry = field(
        default_factory=lambda: Telemetry(None, max_bytes=GatewaySettings().telemetry_max_bytes)
    )
    #: Says of which groups the log has heard: of each client and group once in ten minutes.
    group_lines: Seldom = field(default_factory=lambda: Seldom(burst=1, window_s=600.0))
    #: In which requests that take long share the loop.
    lane: Lane = field(default_factory=Lane)
