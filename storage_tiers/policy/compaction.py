"""Plans what the log cleaner cleans next. Pure.

A log is clean up to the offset that its last cleaning reached. The segments after it are dirty as far as they may be cleaned:
they are closed, lie below `bound` = min(high watermark, last stable offset), and are older than `min.compaction.lag.ms`. A log
is due once the dirty share of the clean and dirty bytes exceeds `min.cleanable.dirty.ratio`, or once a dirty record is older
than `max.compaction.lag.ms`. Segments are cleaned whole.

A cleaning may not reach `end`: a full map of keys ends it earlier.
Source: `LogCleanerManager` and `LogToClean` of Kafka 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from storage_tiers.policy.segments import SegmentView


class CleaningLimits(NamedTuple):
    """`min.compaction.lag.ms`, `max.compaction.lag.ms`, `min.cleanable.dirty.ratio`."""

    min_lag_ms: int
    max_lag_ms: int
    min_ratio: float


class CleaningPlan(NamedTuple):
    """Offsets [dirty_start, end) are dirty. Sizes are in bytes. `overdue_ms` is the time by which a dirty record's age exceeds
    `max.compaction.lag.ms`, 0 if none does."""

    dirty_start: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    min_ratio: float

    @property
    def is_overdue(self) -> bool:
        return self.overdue_ms > 0

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.dirty_ratio > self.min_ratio

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


View = TypeVar("View", bound=SegmentView)


def plan_cleaning(
    segments: Sequence[View],
    *,
    cleaned_to: int,
    bound: int,
    now_ms: int,
    limits: CleaningLimits,
    first_timestamp: Callable[[View], int],
) -> CleaningPlan | None:
    """Plans the next cleaning of one log; None if nothing is dirty. `segments` are the log's durable ones from the oldest on.
    `cleaned_to` is where the last cleaning ended, 0 if that is not known. `first_timestamp` (ms) is called for at most one
    segment."""
    end, clean_bytes, dirty_bytes = 0, 0, 0
    oldest_dirty: View | None = None
    for segment in segments:
        too_young = limits.min_lag_ms > 0 and segment.max_timestamp > now_ms - limits.min_lag_ms
        if segment.active or segment.end > bound or (too_young and segment.end > cleaned_to):
            break
        end = segment.end
        if segment.end <= cleaned_to:
            clean_bytes += segment.size_bytes
        else:
            dirty_bytes += segment.size_bytes
            oldest_dirty = oldest_dirty or segment
    if oldest_dirty is None:
        return None
    overdue_ms = 0
    if limits.max_lag_ms < _UNBOUNDED:
        timestamp = first_timestamp(oldest_dirty)
        overdue_ms = max(0, now_ms - timestamp - limits.max_lag_ms) if timestamp > 0 else 0
    dirty_start = max(cleaned_to, segments[0].base)
    return CleaningPlan(
        dirty_start=dirty_start,
        end=end,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        overdue_ms=overdue_ms,
        min_ratio=limits.min_ratio,
    )


_UNBOUNDED = (1 << 63) - 1
