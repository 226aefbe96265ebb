"""The segments of one partition's log, oldest first: which one holds an offset, how much they hold, which files stay open.

Invariants: they tile, each begins where its predecessor ends; only the newest grows; `closed_bytes` is the sum of all others.
There is at least one from opening to closing, but for the moment in which a log is discarded for a new one. At most
`OPEN_CLOSED_SEGMENTS` closed ones keep a descriptor.

Not promised: durability of anything here; that is `durability`'s.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from storage_tiers.clock import Rng
from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot.segment import Segment, SegmentInfo
from storage_tiers.hot.settings import LogSettings
from storage_tiers.types import TopicPartition

#: Closed segments whose descriptors are kept for the next reader.
OPEN_CLOSED_SEGMENTS = 4

_base_of = attrgetter("base")


class Beyond(NamedTuple):
    """Bytes and number of some segments, and of the closed ones among them; when the oldest was begun (Unix ms, -1 for
    none)."""

    size: int
    segments: int
    closed_size: int
    closed_segments: int
    since_ms: int


NOTHING_BEYOND = Beyond(0, 0, 0, 0, -1)


class Segments:
    """`all` is for reading; it changes through the methods alone."""

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

    def __init__(
        self,
        found: list[Segment],
        *,
        directory: str,
        partition: TopicPartition,
        settings: LogSettings,
        files: Files,
        rng: Rng,
    ) -> None:
        """`found` is what recovery has left, perhaps nothing."""
        self._directory = directory
        self._partition = partition
        self._settings = settings
        self._files = files
        self._rng = rng
        self._recently_read: list[Segment] = []
        self.all = found
        self.closed_bytes = sum(segment.size for segment in found[:-1])
        #: Of segments that left by `drop_oldest`.
        self.evicted_bytes = 0
        if found:
            found[-1].jitter_ms = self._jitter()

    # --- what there is ------------------------------------------------------------------------------------------------
    @property
    def newest(self) -> Segment:
        """The one that takes appends."""
        return self.all[-1]

    @property
    def size_bytes(self) -> int:
        return self.closed_bytes + self.all[-1].size

    def beyond(self, offset: int) -> Beyond:
        """What the segments hold that do not end at or below `offset`. Reads nothing from disk."""
        newest = self.all[-1]
        if newest.end <= offset:
            return NOTHING_BEYOND
        rest = [segment for segment in self.all if segment.end > offset and segment.size]
        size = sum(segment.size for segment in rest)
        active = newest.size
        oldest = min((segment.first_append_ms for segment in rest), default=-1)
        return Beyond(size, len(rest), size - active, len(rest) - (active > 0), oldest)

    def infos(self) -> tuple[SegmentInfo, ...]:
        """All, oldest first. StorageError if one cannot be read."""
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
        """From the segment on that holds `offset`; all of them if they begin above it."""
        return iter(self.all[max(self.index_of(offset), 0) :])

    def was_read(self, segment: Segment) -> None:
        """Its descriptor stays for the next reader, until `OPEN_CLOSED_SEGMENTS` others were read."""
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
        """A segment as the settings want it, in no list yet and without a file."""
        segment = Segment(self._files, self._directory, base, interval=self._settings.index_interval_bytes)
        segment.jitter_ms = self._jitter()
        return segment

    def _jitter(self) -> int:
        bound = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        return int(self._rng.uniform(0, bound)) if bound > 0 else 0

    def add(self, segment: Segment) -> None:
        """`segment` is the newest from now on; the one before is closed."""
        closed = self.all[-1]
        self.all.append(segment)
        self.closed_bytes += closed.size
        self._keep_open(closed)

    def begin_with(self, segment: Segment) -> None:
        """The only one, after `clear`."""
        self.all = [segment]

    def cut_after(self, newest: Segment) -> None:
        """What follows `newest`, which may have shrunk, is not the log's any more."""
        del self.all[self.all.index(newest) + 1 :]
        self._recently_read = [segment for segment in self._recently_read if segment.base < newest.base]
        self.closed_bytes = sum(segment.size for segment in self.all[:-1])

    def drop_oldest(self) -> None:
        """The oldest one, a closed one, leaves the log; readers keep the descriptors that they have."""
        oldest = self.all.pop(0)
        self.closed_bytes -= oldest.size
        self.evicted_bytes += oldest.size
        if oldest in self._recently_read:
            self._recently_read.remove(oldest)
        oldest.release_file()

    def clear(self) -> None:
        """The log is discarded: none is left."""
        self.all, self._recently_read = [], []
        self.closed_bytes = 0

    def release_files(self) -> None:
        """Gives up all descriptors; a segment opens its file again when it is used."""
        for segment in self.all:
            segment.release_file()

    def reconfigure(self, settings: LogSettings) -> None:
        self._settings = settings
        for segment in self.all:
            segment.interval = settings.index_interval_bytes
