"""The segments of one partition's log, oldest first: lookup by offset, sizes, and which files stay open.

Invariants: each segment begins where its predecessor ends; only the newest grows; `closed_bytes` is the size of all others. An
open log has at least one segment, except while it is discarded for a new one. At most `OPEN_CLOSED_SEGMENTS` closed segments
keep a descriptor.

`durability.py` tracks which segments are durable.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from storage_tiers.errors import StorageError
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.segment import Segment, SegmentInfo
from storage_tiers.hot.settings import LogSettings

#: Closed segments whose descriptors are kept for the next reader.
OPEN_CLOSED_SEGMENTS = 4

_base_of = attrgetter("base")


class SegmentTotals(NamedTuple):
    """Bytes and number of some segments and of the closed ones among them. `since_ms` is the time of the first append to the
    oldest one (ms, -1 for none)."""

    size: int
    segments: int
    closed_size: int
    closed_segments: int
    since_ms: int


NO_SEGMENTS = SegmentTotals(0, 0, 0, 0, -1)


class Segments:
    """`all` is read-only for callers; `closed_bytes` and `evicted_bytes` are in bytes."""

    __slots__ = (
        "_directory",
        "_files",
        "_partition",
        "_recently_read",
        "_rng",
        "_settings",
        "all",
        "closed_bytes",
        "evicted_bytes",
    )

    def __init__(self, found: list[Segment], ground: LogGround, settings: LogSettings) -> None:
        """`found` are the segments that recovery loaded, possibly none."""
        self._directory = ground.directory
        self._partition = ground.partition
        self._settings = settings
        self._files = ground.files
        self._rng = ground.rng
        self._recently_read: list[Segment] = []
        self.all = found
        self.closed_bytes = sum(segment.size for segment in found[:-1])
        #: Bytes of segments removed by `drop_oldest`.
        self.evicted_bytes = 0
        if found:
            found[-1].jitter_ms = self._jitter()

    # --- state --------------------------------------------------------------------------------------------------------
    @property
    def newest(self) -> Segment:
        """The segment that takes appends."""
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        return self.closed_bytes + self.all[-1].size

    def totals_after(self, offset: int) -> SegmentTotals:
        """Totals of the segments that end above `offset`. Reads nothing from disk."""
        newest = self.all[-1]
        if newest.end <= offset:
            return NO_SEGMENTS
        rest = [segment for segment in self.all if segment.end > offset and segment.size]
        size = sum(segment.size for segment in rest)
        active = newest.size
        oldest = min((segment.first_append_ms for segment in rest), default=-1)
        return SegmentTotals(size, len(rest), size - active, len(rest) - (active > 0), oldest)

    def infos(self) -> tuple[SegmentInfo, ...]:
        """All segments, oldest first. StorageError if one cannot be read."""
        return tuple(self._info(segment) for segment in self.all)

    def oldest_info(self) -> SegmentInfo:
        """The first of `infos`."""
        return self._info(self.all[0])

    def _info(self, segment: Segment) -> SegmentInfo:
        try:
            return segment.info(active=segment is self.all[-1])
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot read its segments ({error}); repair or replace the disk"
            ) from error

    # --- by offset ----------------------------------------------------------------------------------------------------
    def index_of(self, offset: int) -> int:
        """Index of the last segment that begins at or below `offset`; -1 if none does."""
        return bisect.bisect_right(self.all, offset, key=_base_of) - 1

    def since(self, offset: int) -> Iterator[Segment]:
        """The segments from the one that holds `offset` on; all segments if the first begins above `offset`."""
        return iter(self.all[max(self.index_of(offset), 0) :])

    def was_read(self, segment: Segment) -> None:
        """Keeps the segment's descriptor for the next reader until `OPEN_CLOSED_SEGMENTS` others were read."""
        if segment is not self.all[-1] and segment.is_open:
            self._keep_open(segment)

    def _keep_open(self, segment: Segment) -> None:
        recent = self._recently_read
        if segment in recent:
            recent.remove(segment)
        recent.append(segment)
        if len(recent) > OPEN_CLOSED_SEGMENTS:
            recent.pop(0).release_file()

    # --- changes ------------------------------------------------------------------------------------------------------
    def make(self, base: int) -> Segment:
        """A new segment with the current settings, not yet in the list and without a file."""
        segment = Segment(self._files, self._directory, base, interval=self._settings.index_interval_bytes)
        segment.jitter_ms = self._jitter()
        return segment

    def _jitter(self) -> int:
        bound = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        return int(self._rng.uniform(0, bound)) if bound > 0 else 0

    def add(self, segment: Segment) -> None:
        """Appends `segment` as the newest; its predecessor is closed."""
        closed = self.all[-1]
        self.all.append(segment)
        self.closed_bytes += closed.size
        self._keep_open(closed)

    def begin_with(self, segment: Segment) -> None:
        """Makes `segment` the only one, after `clear`."""
        self.all = [segment]

    def cut_after(self, newest: Segment) -> None:
        """Drops the segments after `newest`, which may itself have shrunk."""
        del self.all[self.all.index(newest) + 1 :]
        self._recently_read = [segment for segment in self._recently_read if segment.base < newest.base]
        self.closed_bytes = sum(segment.size for segment in self.all[:-1])

    def drop_oldest(self) -> None:
        """Removes the oldest segment, which is closed, from the list; readers keep their descriptors."""
        oldest = self.all.pop(0)
        self.closed_bytes -= oldest.size
        self.evicted_bytes += oldest.size
        if oldest in self._recently_read:
            self._recently_read.remove(oldest)
        oldest.release_file()

    def exactly(self, wanted: Sequence[tuple[int, int]], end: int) -> list[Segment]:
        """The closed segments of these bases and sizes, the last of which ends at `end`; none if they are not all there."""
        old = [segment for segment in self.all[:-1] if wanted[0][0] <= segment.base < end]
        is_same = [(segment.base, segment.size) for segment in old] == list(wanted)
        return old if is_same and old[-1].end == end else []

    def swap(self, old: Sequence[Segment], new: Segment) -> None:
        """Replaces neighbouring closed segments by `new`; readers keep their descriptors."""
        at = self.all.index(old[0])
        self.all[at : at + len(old)] = [new]
        self.closed_bytes += new.size - sum(segment.size for segment in old)
        for segment in old:
            if segment in self._recently_read:
                self._recently_read.remove(segment)
            segment.release_file()

    def clear(self) -> None:
        """Removes all segments from the list."""
        self.all, self._recently_read = [], []
        self.closed_bytes = 0

    def release_files(self) -> None:
        """Releases all descriptors; a segment reopens its file on the next use."""
        for segment in self.all:
            segment.release_file()

    def reconfigure(self, settings: LogSettings) -> None:
        self._settings = settings
        for segment in self.all:
            segment.interval = settings.index_interval_bytes
