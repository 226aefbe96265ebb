"""What the planners know of a local segment: `storage_tiers.hot.segment.SegmentInfo`, or anything of its shape."""

from __future__ import annotations

from typing import Protocol


class SegmentView(Protocol):
    """Offsets are half-open, times in ms since 1970. `max_timestamp` is -1 where no record has one; `first_append_ms` is
    the wall clock at the first append, -1 for an empty segment."""

    @property
    def base(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...

    @property
    def first_append_ms(self) -> int: ...

    @property
    def active(self) -> bool: ...


def newest_ms(segment: SegmentView) -> int:
    """The time that retention counts from: the largest timestamp, or, where records have none, when they were appended."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.first_append_ms
