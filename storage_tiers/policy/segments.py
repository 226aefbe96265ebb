"""A local segment as the planners see it: `storage_tiers.hot.segment.SegmentInfo`, or anything of its shape."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SegmentView(Protocol):
    """Offsets are half-open, times in ms since 1970. `max_timestamp` is -1 where no record has one; `first_append_ms` is
    the steady clock at the first append, -1 for an empty segment."""

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


class Now(NamedTuple):
    """`expiry_ms` is what timestamps are compared with (wall time, or less while the wall clock is not to be trusted);
    `steady_ms` never steps, and is what `first_append_ms` was taken from."""

    expiry_ms: int
    steady_ms: int


def age_ms(segment: SegmentView, now: Now) -> int:
    """What retention counts: since the largest timestamp, or, where records have none, since they were appended."""
    if segment.max_timestamp >= 0:
        return now.expiry_ms - segment.max_timestamp
    return now.steady_ms - segment.first_append_ms
