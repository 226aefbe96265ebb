"""Plans which segments to offload next, and when to close the active segment for that. Pure.

A closed segment is offloaded in order, as soon as it lies wholly below `bound` = min(high watermark, last stable offset). The
active one is closed after `segment.ms` or `tidelog.tier.max.lag.ms`, even without further appends, or when a seal is
requested. Batches below log start are not offloaded: the first offload begins with the batch that holds log start.

An open transaction holds back `bound`, and with it closed segments, which shows as lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.policy.segments import SegmentView


class Offload(NamedTuple):
    """Part of the segment at `segment_base`: from the batch that holds `start` to `end`, the segment's own end."""

    segment_base: int
    start: int
    end: int


class TieringPlan(NamedTuple):
    """`offloads` are consecutive. `lag_ms` is the time since the first append of the oldest segment not yet in the bucket.
    `held_at` is `bound` if it holds a closed segment back, else None. `hole` is the first offset, at or above log start and
    the manifest's end, that no local segment holds: nothing can be offloaded past it."""

    close_active: bool
    offloads: tuple[Offload, ...]
    lag_ms: int = 0
    held_at: int | None = None
    hole: int | None = None


def plan_tiering(
    segments: Sequence[SegmentView],
    *,
    tier_end: int,
    bound: int,
    log_start: int,
    now_ms: int,
    segment_ms: int,
    max_lag_ms: int,
    seal_below: int = 0,
) -> TieringPlan:
    """Plans the next offloads. `segments` are in order, with the active one last. The active one is closed by its age, or if it
    holds offsets below `seal_below`."""
    offloads: list[Offload] = []
    close_active = False
    held_at: int | None = None
    lag_ms = 0
    start = max(tier_end, log_start)
    for segment in segments:
        if segment.end <= start or segment.size_bytes == 0:
            continue
        age = max(0, now_ms - segment.first_append_ms)
        lag_ms = max(lag_ms, age)
        if segment.base > start:
            return TieringPlan(close_active, tuple(offloads), lag_ms, held_at, hole=start)
        if segment.active:
            sealed = max(segment.base, start) < seal_below
            close_active = sealed or age >= min(segment_ms, max_lag_ms)
        elif held_at is None and segment.end <= bound:
            offloads.append(Offload(segment.base, start, segment.end))
        else:
            held_at = bound
        start = segment.end
    return TieringPlan(close_active, tuple(offloads), lag_ms, held_at)
