"""What handlers are told beside the core: bounds that Kafka has a config for, time and chance."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_gateway.client import Asking
from kafka_gateway.telemetry import Telemetry
from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng
from storage_tiers.events import Seldom
from storage_tiers.turns import Lane

#: `telemetry.max.bytes` where nothing is configured.
TELEMETRY_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Options:
    #: `max.incremental.fetch.session.cache.slots`
    fetch_session_slots: int = 1000
    #: `max.request.partition.size.limit`: partitions in one answer of DescribeTopicPartitions.
    described_partitions: int = 2000
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRng)
    #: Whose request is being started.
    asking: Asking = field(default_factory=Asking)
    #: Who pushes metrics (KIP-714); without a receiver nobody is told to.
    telemetry: Telemetry = field(default_factory=lambda: Telemetry(None, max_bytes=TELEMETRY_MAX_BYTES))
    #: Says of which groups the log has heard: of each client and group once in ten minutes.
    group_lines: Seldom = field(default_factory=lambda: Seldom(burst=1, window_s=600.0))
    #: In which requests that take long share the loop.
    lane: Lane = field(default_factory=Lane)
