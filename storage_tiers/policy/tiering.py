"""What to offload next, and when to close the active segment for it: pure.

A closed segment offloads at once, in order, as soon as it lies wholly below `bound` = min(high watermark, last stable
offset). The active one is closed by the clock, also when nothing is appended any more: at `segment.ms`, at
`tidelog.tier.max.lag.ms`, or when a seal was requested. Records below log start are never offloaded: the first
offload begins with the batch that holds it.

Not promised: that a closed segment can go. An open transaction holds `bound`, and shows as lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.policy.segments import SegmentView


class Offload(NamedTuple):
    """Of the segment at `segment_base`: from the batch that holds `start` up to `end`, the segment's own end."""

    segment_base: int
    start: int
    end: int


class TieringPlan(NamedTuple):
    """`offloads` follow one another. `lag_ms` is the age of the oldest record that is not in the bucket yet, by its append;
    `held_at` the bound where it keeps a closed segment back, else None. `hole` is the first offset, at or above log start
    and the manifest's end, that no local segment holds: nothing can be offloaded past it."""

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
    """`segments` in order, the active one last. `seal_below`: offsets below it are to be offloaded soon."""
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
