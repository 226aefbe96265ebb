"""One segment: a `.log` of whole batches and the sparse maps that find one by offset, by time or by transaction.

Invariants: `size` is the log's end, whatever the file holds beyond it; `end` is the offset after the last batch. The
maps of the newest segment are in memory; a closed segment's lie in files once they were written. A `.index` name of a
closed segment means that its log, its other maps and the producer snapshot at its end were synced before the name
appeared, which is why recovery trusts it.

Does not promise to be thread-safe, or to notice that bytes changed under it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import NamedTuple

from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import (
    NO_TIME,
    OffsetIndex,
    StoredOffsetIndex,
    StoredTimeIndex,
    TimeEntry,
    TimeIndex,
    encode_transactions,
    read_transactions,
)
from storage_tiers.hot.scan import read_batches
from storage_tiers.records.batch import HEADER_BYTES, read_header, records_payload
from storage_tiers.records.batch_walk import WHOLE, find_batch
from storage_tiers.records.decoder import decode_batch
from storage_tiers.records.walker import find_timestamp
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction, SharedFile, TimestampOffset

#: Read at once when looking for a batch: usually an index interval and the header of the batch wanted.
LOOKUP_BYTES = 4096 + HEADER_BYTES


_DAMAGED = "look at it with `tidelog log dump {}`, and put it back from a copy"


class BatchSpan(NamedTuple):
    """Where a batch lies in its segment."""

    position: int
    size: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What a planner may know of a segment. Offsets half-open, times in ms.

    `first_append_ms` is the wall clock at the first append (after a restart: the file's last change, if that is
    earlier than the start), -1 for an empty segment.
    """

    base: int
    end: int
    size_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    first_append_ms: int
    active: bool
    path: str


class Segment:
    __slots__ = (
        "_aborted",
        "_checked",
        "_files",
        "_shared",
        "base",
        "end",
        "first_append_ms",
        "first_timestamp",
        "has_transactions",
        "index_on_disk",
        "interval",
        "jitter_ms",
        "newest_offset",
        "newest_timestamp",
        "offsets",
        "path",
        "since_index",
        "size",
        "stem",
        "times",
    )

    def __init__(
        self, files: Files, directory: str, base: int, *, interval: int, size: int = 0, index_on_disk: bool = False
    ) -> None:
        self._files = files
        #: `index.interval.bytes`.
        self.interval = interval
        #: Taken off `segment.ms`, so that many partitions do not roll at once.
        self.jitter_ms = 0
        self.stem = os.path.join(directory, f"{base:020d}")
        self.path = self.stem + layout.LOG
        self.base = base
        self.size = size
        self.end = base
        self.first_append_ms = -1
        #: Max timestamp of the first batch, what rolling by time counts from.
        self.first_timestamp: int | None = None
        #: The largest timestamp and the last offset of the batch that has it; of a closed segment see `newest`.
        self.newest_timestamp = NO_TIMESTAMP
        self.newest_offset = -1
        #: Log bytes since the last entry of the offset index.
        self.since_index = 0
        #: A `.index` of this name exists. Of the newest segment it may be out of date.
        self.index_on_disk = index_on_disk
        #: A `.txnindex` lay beside it when the log was opened.
        self.has_transactions = False
        #: The maps in memory; None where the files are searched instead.
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._checked = False
        self._shared: SharedFile | None = None

    # --- the file -----------------------------------------------------------------------------------------------------
    @property
    def is_open(self) -> bool:
        return self._shared is not None

    def file(self) -> SharedFile:
        """The log's descriptor, opened on first use. StorageError if the disk refuses."""
        if self._shared is None:
            try:
                self._shared = SharedFile(self.path, self._files.open(self.path))
            except OSError as error:
                raise StorageError(
                    f"cannot open {self.path} ({error}); "
                    "it is tried again: raise the limit of open files, or repair or replace the disk"
                ) from error
        return self._shared

    def create(self) -> None:
        """Makes the empty log file. OSError if the disk refuses."""
        self._shared = SharedFile(self.path, self._files.open(self.path, create=True, truncate=True))
        self.start_maps()

    def release_file(self) -> None:
        """Gives the descriptor up; answers that still use it keep it open."""
        if self._shared is not None:
            self._shared.release()
            self._shared = None

    def cut_file(self) -> int:
        """The file ends where the segment does afterwards; returns its descriptor. OSError or StorageError if the disk
        refuses."""
        fd = self.file().fd
        if os.fstat(fd).st_size != self.size:
            self._files.truncate(fd, self.size)
        return fd

    # --- the maps -----------------------------------------------------------------------------------------------------
    def start_maps(self) -> None:
        """Empty maps in memory: the segment is new, or about to be walked from its start."""
        self.offsets, self.times, self._aborted = OffsetIndex(self.base), TimeIndex(self.base), []
        self.newest_timestamp, self.newest_offset = NO_TIME
        self.first_timestamp = None
        self.since_index = 0

    def drop_maps(self) -> None:
        """The files hold everything now."""
        self.offsets = self.times = self._aborted = None
        self.index_on_disk = self._checked = True

    def load_maps(self) -> tuple[OffsetIndex, TimeIndex]:
        """The maps in memory, to be extended: from the files, or from the log where those are missing or foreign."""
        if self.offsets is None or self.times is None:
            aborted = self.aborted()
            if self._sound():
                self.offsets = OffsetIndex.load(self.stem + layout.OFFSET_INDEX, self.base)
                self.times = TimeIndex.load(self.stem + layout.TIME_INDEX, self.base)
            else:
                self._walk_all()
            self._aborted = aborted
        assert self.offsets is not None and self.times is not None
        return self.offsets, self.times

    def _walk_all(self) -> None:
        end = self.end
        self.start_maps()
        try:
            self.walk(0)
        except (OSError, StorageError):
            # Else the next who looks would take what was read so far for the whole.
            self.offsets = self.times = self._aborted = None
            self.newest_timestamp, self.newest_offset = NO_TIME
            self.end = end
            raise

    def load_tail(self) -> None:
        """Learns end and newest timestamp of a segment closed clean, from the last index entry on.

        StorageError if the file does not end with a whole batch.
        """
        if not self._sound():
            self.load_maps()
            return
        self.newest_timestamp, self.newest_offset = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base).last()
        self.since_index = 0
        self.walk(StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).last_position())

    def walk(self, position: int) -> None:
        """Takes the batches in [position, size) into the maps and `end`. StorageError if what lies there are no batches."""
        for chunk in read_batches(self.file().fd, position, self.size):
            if chunk.stop != WHOLE:
                raise StorageError(
                    f"{self.path}: no record batch at byte {chunk.position} of {self.size}; {_DAMAGED.format(self.path)}"
                )
            for at, size, _, following, _, timestamp in chunk.batches:
                self.note(chunk.position + at, size, following, timestamp)

    def note(self, position: int, size: int, end: int, timestamp: int) -> None:
        """A batch at `position` belongs to the segment (Kafka: LogSegment.append)."""
        if position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.newest_timestamp:
            self.newest_timestamp, self.newest_offset = timestamp, end - 1
        if self.since_index > self.interval and self.offsets is not None and self.times is not None:
            self.offsets.append(end - 1, position)
            self.times.maybe_append(self.newest_timestamp, self.newest_offset)
            self.since_index = 0
        self.since_index += size
        self.end = end

    def truncate(self, cut: BatchSpan) -> None:
        """Forgets the batch at `cut` and all after it. The bytes in the file are the caller's."""
        offsets, times = self.load_maps()
        assert self._aborted is not None
        offsets.truncate(cut.position)
        times.truncate(cut.base_offset)
        self._aborted = [entry for entry in self._aborted if entry.last_offset < cut.base_offset]
        self.size, self.end, self.since_index = cut.position, self.base, 0
        self.newest_timestamp, self.newest_offset = times.last()
        if cut.position == 0:
            self.first_timestamp, self.first_append_ms = None, -1
        self.walk(offsets.last_position())

    def forget_index(self) -> None:
        """A clean stop gave the newest segment a `.index`. Once the segment grows or shrinks, that name would make a
        crash trust it, so it goes, durably, before anything can follow the segment or take its bytes' place. OSError if the
        disk refuses."""
        if self.index_on_disk:
            self.load_maps()
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt ended before the directory was synced
                self._files.unlink(self.stem + layout.OFFSET_INDEX)
            self._files.fsync_dir(os.path.dirname(self.path))
            self.index_on_disk = False

    def close_maps(self) -> None:
        """Before the segment is closed: its newest timestamp must stand in the time index, where readers look for it."""
        if self.times is not None:
            self.times.maybe_append(self.newest_timestamp, self.newest_offset)

    def encode_maps(self) -> list[tuple[str, bytes]]:
        """(path, content) of each map in memory but the offset index."""
        assert self.times is not None and self._aborted is not None
        maps = [(self.stem + layout.TIME_INDEX, self.times.encode())]
        if self._aborted:
            maps.append((self.stem + layout.TRANSACTION_INDEX, encode_transactions(self._aborted)))
        return maps

    def encode_index(self) -> tuple[str, bytes]:
        """(path, content) of the offset index."""
        assert self.offsets is not None
        return self.stem + layout.OFFSET_INDEX, self.offsets.encode()

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose marker lies in this segment, by marker."""
        if self._aborted is not None:
            return self._aborted
        try:
            return read_transactions(self.stem + layout.TRANSACTION_INDEX)
        except FileNotFoundError:
            return []

    def add_aborted(self, entry: AbortedTransaction) -> None:
        assert self._aborted is not None
        self._aborted.append(entry)

    def _sound(self) -> bool:
        """Whether the files can be this segment's. Looked at once."""
        if not self._checked and self.index_on_disk:
            try:
                self._checked = (
                    StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).sound(self.size)
                    and StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base).sound()
                )
            except FileNotFoundError:
                pass
        return self._checked

    # --- looking up ---------------------------------------------------------------------------------------------------
    def _lookup(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`."""
        if self.offsets is None:
            if self._sound():
                return StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).lookup(offset)
            return self.load_maps()[0].lookup(offset)
        return self.offsets.lookup(offset)

    def find(self, offset: int) -> BatchSpan | None:
        """The first batch that ends at or after `offset`; None if the segment has none."""
        position = self._lookup(offset)
        fd = self.file().fd
        while position < self.size:
            data = os.pread(fd, min(LOOKUP_BYTES, self.size - position), position)
            if not data:
                break
            at, second, third = find_batch(data, 0, len(data), offset, False)
            if at >= 0:
                return BatchSpan(position + at, second, third)
            if at == -2 or (second == 0 and third == HEADER_BYTES):
                break
            # Go on at `second`; a batch whose header was seen, but not its end, is passed over.
            position += second + (third if third > HEADER_BYTES else 0)
        if position < self.size:
            raise StorageError(f"{self.path}: no record batch at byte {position}; {_DAMAGED.format(self.path)}")
        return None

    def newest(self) -> TimeEntry:
        """The largest timestamp, and the last offset of the batch that has it."""
        if self.newest_offset < 0 and self.offsets is None:
            if self._sound():
                index = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base)
                self.newest_timestamp, self.newest_offset = index.last()
            else:
                self.load_maps()
        return TimeEntry(self.newest_timestamp, self.newest_offset)

    def newest_from(self, min_offset: int) -> TimeEntry:
        """`newest` among the batches that end above `min_offset`."""
        if min_offset <= self.base:
            return self.newest()
        span, newest = self.find(min_offset), NO_TIME
        if span is not None:
            for chunk in read_batches(self.file().fd, span.position, self.size):
                for _, _, _, following, _, timestamp in chunk.batches:
                    if timestamp > newest.timestamp:
                        newest = TimeEntry(timestamp, following - 1)
        return newest

    def first_batch_timestamp(self) -> int:
        """Max timestamp of the first batch; NO_TIMESTAMP if there is none."""
        if self.first_timestamp is None and self.size:
            self.first_timestamp = read_header(os.pread(self.file().fd, HEADER_BYTES, 0)).max_timestamp
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    def first_at_or_after(self, timestamp: int, min_offset: int) -> TimestampOffset | None:
        """The first record by offset, from `min_offset` on, whose timestamp is at least `timestamp`.

        The first time entry that reaches the timestamp names a batch that raised the maximum to it; whatever raised
        it first lies in the same index interval, since each interval's end enters the maximum so far.
        """
        if self.times is not None:
            entry = self.times.first_at_or_after(timestamp)
            last = self.offsets.last_position() if self.offsets is not None else 0
        elif self._sound():
            entry = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base).first_at_or_after(timestamp)
            last = StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).last_position()
        else:
            self.load_maps()
            return self.first_at_or_after(timestamp, min_offset)
        position = last if entry is None else self._lookup(entry.offset - 1)
        below = self.find(min_offset)
        if below is None:
            return None
        return self._first_record(max(position, below.position), timestamp, min_offset)

    def _first_record(self, position: int, timestamp: int, min_offset: int) -> TimestampOffset | None:
        for chunk in read_batches(self.file().fd, position, self.size):
            for at, size, _, following, epoch, newest in chunk.batches:
                if newest < timestamp or following <= min_offset:
                    continue
                found = first_record_at(memoryview(chunk.data)[at : at + size], timestamp, min_offset)
                if found is not None:
                    return TimestampOffset(*found, epoch)
        return None

    def info(self, *, active: bool) -> SegmentInfo:
        newest = self.newest()
        return SegmentInfo(
            self.base,
            self.end,
            self.size,
            newest.timestamp,
            newest.offset,
            self.first_append_ms if self.size else -1,
            active,
            self.path,
        )


def first_record_at(batch: memoryview, timestamp: int, min_offset: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the batch's first record from `min_offset` on whose timestamp is at least `timestamp`."""
    header = read_header(batch)
    if header.log_append_time:
        offset = max(header.base_offset, min_offset)
        return (header.max_timestamp, offset) if header.count and header.max_timestamp >= timestamp else None
    if header.base_offset < min_offset:
        # The rare batch that log start cuts in two.
        for record in decode_batch(batch, verify=False):
            if record.offset >= min_offset and record.timestamp >= timestamp:
                return record.timestamp, record.offset
        return None
    payload = records_payload(batch, header)
    return find_timestamp(payload, header.count, header.base_timestamp, header.base_offset, timestamp)
