"""What handlers are told beside the core: bounds that Kafka has a config for, time and chance."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_tiers.clock import Clock, Rng, SystemClock, SystemRng


@dataclass(frozen=True, slots=True)
class Options:
    #: `max.incremental.fetch.session.cache.slots`
    fetch_session_slots: int = 1000
    #: `max.request.partition.size.limit`: partitions in one answer of DescribeTopicPartitions.
    described_partitions: int = 2000
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRng)
