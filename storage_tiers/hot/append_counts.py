"""Counts the records and bytes appended to a log since it was opened, including records that have been removed since.

The counts follow from the log end and the segments' sizes, so an append updates no counter. An operation that changes the end
or a size without an append, such as a truncation or a swap of segments, reads `current` first and passes it to `set`
afterwards.
"""

from __future__ import annotations

from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.segments import Segments


class AppendCounts:
    """`records` counts offsets, `size` bytes. `set` must be called once the log has its first segment."""

    __slots__ = ("_end", "_opened_bytes", "_opened_end", "_segments")

    def __init__(self, segments: Segments, end: LogEnd) -> None:
        self._segments = segments
        self._end = end
        self._opened_end = self._opened_bytes = 0

    @property
    def records(self) -> int:
        return self._end.offset - self._opened_end

    @property
    def size(self) -> int:
        return self._segments.size_bytes + self._segments.evicted_bytes - self._opened_bytes

    @property
    def current(self) -> tuple[int, int]:
        """(`records`, `size`); zeros while the log has no segment."""
        return (self.records, self.size) if self._segments.all else (0, 0)

    def set(self, records: int, size: int) -> None:
        """Sets the current values of `records` and `size`."""
        self._opened_end = self._end.offset - records
        self._opened_bytes = self._segments.size_bytes + self._segments.evicted_bytes - size
