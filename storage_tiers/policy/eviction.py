"""Plans which local segments to evict: pure, and the guard of invariant I3.

A segment wholly below log start may always be deleted. Any other segment of a tiered topic is evicted only if the durable
manifest reaches the segment's end and the segment exceeds a local limit: `local.retention.ms` by its newest record, or
`local.retention.bytes` by the bytes that would remain. Segments are evicted oldest first and without holes, and never the
active one. Without a tier only log start decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from storage_tiers.policy.segments import Now, SegmentView, age_ms

UNLIMITED = -1


class Reason(Enum):
    """The limit that a segment exceeds, as the log names it."""

    BELOW_LOG_START = "below log start"
    AGE = "older than local.retention.ms"
    SIZE = "more than local.retention.bytes"


class Evict(NamedTuple):
    """The closed segment that begins at offset `base` may be evicted."""

    base: int
    reason: Reason


class LocalLimits(NamedTuple):
    """`local.retention.ms` and `local.retention.bytes`; -1 is no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


def plan_eviction(
    segments: Sequence[SegmentView], *, durable_end: int | None, log_start: int, limits: LocalLimits, now: Now
) -> list[Evict]:
    """The segments to evict, oldest first. `durable_end` is the end of a manifest that is durable in the store and has a synced
    copy in the partition's directory; None if the topic is not tiered or no manifest is known."""
    evictions: list[Evict] = []
    excess = sum(segment.size_bytes for segment in segments) - limits.retention_bytes
    for segment in segments:
        if segment.active:
            break
        if segment.end <= log_start:
            reason = Reason.BELOW_LOG_START
        elif durable_end is None or segment.end > durable_end:
            break
        elif limits.retention_ms != UNLIMITED and age_ms(segment, now) > limits.retention_ms:
            reason = Reason.AGE
        elif limits.retention_bytes != UNLIMITED and excess >= segment.size_bytes:
            reason = Reason.SIZE
        else:
            break
        evictions.append(Evict(segment.base, reason))
        excess -= segment.size_bytes
    return evictions
