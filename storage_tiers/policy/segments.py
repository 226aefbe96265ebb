"""A local segment as the planners see it: `storage_tiers.hot.segment.SegmentInfo`, or any type of its shape."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SegmentView(Protocol):
    """Offsets are half-open, times in ms since 1970. `max_timestamp` is -1 if no record has one; `first_append_ms` is
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
    """`expiry_ms` is compared with timestamps: wall time, or less while the wall clock cannot be trusted. `steady_ms` is the
    clock of `first_append_ms`, which never steps."""

    expiry_ms: int
    steady_ms: int


def age_ms(segment: SegmentView, now: Now) -> int:
    """Age for retention: since the largest timestamp, or since the first append if no record has a timestamp."""
    if segment.max_timestamp >= 0:
        return now.expiry_ms - segment.max_timestamp
    return now.steady_ms - segment.first_append_ms
