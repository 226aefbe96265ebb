"""The bounds of the newest segment, with which each batch is compared before its append (Kafka: LogSegment.shouldRoll).

Invariant: the limits are precomputed for one segment, so a batch costs comparisons and no lookups. The bounds are Kafka's:
`segment.bytes`; `segment.ms`, counted from the first batch's timestamp if it has one, else from its append; the 32 bits of an
offset relative to the segment's base; `segment.index.bytes`.
"""

from __future__ import annotations

from storage_tiers.hot.indexes import MAX_RELATIVE_OFFSET
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import UNBOUNDED, LogSettings


class RollLimits:
    """Largest values that the segment accepts: its size in bytes, a batch's last offset, its max timestamp in ms, and the
    current time in ms."""

    __slots__ = ("clock_ms", "offset", "size", "timestamp")

    def __init__(self) -> None:
        self.size = 0
        self.offset = -1
        self.timestamp = self.clock_ms = UNBOUNDED

    def exceeded_by(self, size: int, offset: int, timestamp: int, now_ms: int) -> bool:
        """Whether a batch that would grow the segment to `size` bytes belongs in the next one."""
        return size > self.size or timestamp > self.timestamp or now_ms > self.clock_ms or offset > self.offset

    def arm(self, segment: Segment, settings: LogSettings) -> None:
        """Computes the limits for `segment`, whose indexes are in memory and whose first batch has been read."""
        self.size = settings.segment_bytes
        self.offset = segment.base + MAX_RELATIVE_OFFSET
        self.timestamp = self.clock_ms = UNBOUNDED
        self.check_index_space(segment, settings)
        if not segment.size:
            return
        after = settings.segment_ms - segment.jitter_ms
        first = segment.first_batch_timestamp()
        if first >= 0:
            self.timestamp = first + after
        else:
            self.clock_ms = segment.first_append_ms + after

    def check_index_space(self, segment: Segment, settings: LogSettings) -> None:
        """Closes the segment to further batches once its indexes are full; called after each new entry."""
        assert segment.offsets is not None and segment.times is not None
        # Each index keeps one entry free, because closing adds one.
        limit = settings.segment_index_bytes
        if (len(segment.offsets) + 1) * 8 > limit or (len(segment.times) + 2) * 12 > limit:
            self.size = 0
