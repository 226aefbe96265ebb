"""When the newest segment is full: what a batch is compared with before it is appended (Kafka: LogSegment.shouldRoll).

Invariant: armed for one segment, whose first batch it counts the age from; nothing here is looked up for a batch. The bounds
are Kafka's: `segment.bytes`; `segment.ms`, counted from the first batch's timestamp if it has one, else from when it was
appended; what 32 bits say of an offset relative to the segment's base; `segment.index.bytes`.
"""

from __future__ import annotations

from storage_tiers.hot.indexes import MAX_RELATIVE_OFFSET
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import UNBOUNDED, LogSettings


class RollLimits:
    """Each the last that the segment takes: its size in bytes, a batch's last offset and max timestamp (ms), the time (ms)."""

    __slots__ = ("clock_ms", "offset", "size", "timestamp")

    def __init__(self) -> None:
        self.size = 0
        self.offset = -1
        self.timestamp = self.clock_ms = UNBOUNDED

    def passed_by(self, size: int, offset: int, timestamp: int, now_ms: int) -> bool:
        """Whether a batch belongs into another segment that would make this one `size` bytes long."""
        return size > self.size or timestamp > self.timestamp or now_ms > self.clock_ms or offset > self.offset

    def arm(self, segment: Segment, settings: LogSettings) -> None:
        """For what follows in `segment`, whose maps are in memory and whose first batch has been read."""
        self.size = settings.segment_bytes
        self.offset = segment.base + MAX_RELATIVE_OFFSET
        self.timestamp = self.clock_ms = UNBOUNDED
        self.look_at_indexes(segment, settings)
        if not segment.size:
            return
        after = settings.segment_ms - segment.jitter_ms
        first = segment.first_batch_timestamp()
        if first >= 0:
            self.timestamp = first + after
        else:
            self.clock_ms = segment.first_append_ms + after

    def look_at_indexes(self, segment: Segment, settings: LogSettings) -> None:
        """After an entry was added: with full indexes no further batch belongs into `segment`."""
        assert segment.offsets is not None and segment.times is not None
        # One entry of each stays free for what closing adds.
        limit = settings.segment_index_bytes
        if (len(segment.offsets) + 1) * 8 > limit or (len(segment.times) + 2) * 12 > limit:
            self.size = 0
