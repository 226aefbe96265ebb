"""How far log start may rise by `retention.ms` and `retention.bytes`: pure, over both tiers.

As in Kafka: oldest first and without leaving holes; a range goes when its newest record is older than `retention.ms`, or
when the log without it still holds `retention.bytes`; nothing at or above the high watermark goes; when everything has
expired, the active segment is rolled so that it can go as well. A record with a timestamp in the future holds what
follows it.

Not promised: that anything is deleted. Raising log start is the caller's, eviction and the sweeper free the space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Entry
from storage_tiers.policy.segments import Now, SegmentView, age_ms

UNLIMITED = -1


class RetentionLimits(NamedTuple):
    """`retention.ms` and `retention.bytes`; -1 is no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class RetentionPlan(NamedTuple):
    """`log_start` is where it should be. With `roll_active` the active segment has expired: close it first."""

    log_start: int
    roll_active: bool = False


class _Range(NamedTuple):
    end: int
    size: int
    age_ms: int
    active: bool


def plan_retention(
    cold: Iterable[Entry],
    cold_bytes: int,
    hot: Sequence[SegmentView],
    *,
    tier_end: int,
    log_start: int,
    high_watermark: int,
    limits: RetentionLimits,
    now: Now,
    cold_complete: bool = True,
) -> RetentionPlan:
    """`cold` are the live entries in offset order (read only as far as they go), `cold_bytes` the sum over all of them,
    `hot` the local segments in order; those wholly below `tier_end` are in `cold` already. Where `cold` holds only the
    first of them (the rest in pages), `cold_complete` is False: the plan ends with them, but counts all bytes."""
    if limits == RetentionLimits():
        return RetentionPlan(log_start)
    local = [segment for segment in hot if segment.end > max(tier_end, log_start)]
    excess = cold_bytes + sum(segment.size_bytes for segment in local) - limits.retention_bytes
    new_start = log_start
    for candidate in _ranges(cold, local if cold_complete else (), now):
        if candidate.end > high_watermark:
            break
        expired = limits.retention_ms != UNLIMITED and candidate.age_ms > limits.retention_ms
        too_much = limits.retention_bytes != UNLIMITED and excess >= candidate.size
        if not expired and not too_much:
            break
        new_start = max(new_start, candidate.end)
        if candidate.active:
            return RetentionPlan(new_start, roll_active=True)
        excess -= candidate.size
    return RetentionPlan(new_start)


def _ranges(cold: Iterable[Entry], local: Sequence[SegmentView], now: Now) -> Iterable[_Range]:
    for entry in cold:
        newest = entry.max_timestamp if entry.max_timestamp >= 0 else entry.added.time_ms
        yield _Range(entry.end, entry.bytes, now.expiry_ms - newest, False)
    for segment in local:
        if segment.size_bytes > 0:
            yield _Range(segment.end, segment.size_bytes, age_ms(segment, now), segment.active)
