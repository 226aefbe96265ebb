"""One segment: a `.log` of whole batches, and sparse indexes by offset, by time and by transaction.

Invariants: `size` is the log's end in bytes, even if the file is longer; `end` is the offset after the last batch. The indexes
of the newest segment are in memory; those of a closed segment are in files once written. The `.index` name of a closed segment
appears only after its log, its other indexes and the producer snapshot at its end are synced, so recovery trusts it.

A segment belongs to the event loop. Threads may call `aborted` and `aborted_since`, and a flush encodes the indexes of closed
segments in its thread. Bytes that another program changes are not detected.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
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
    read_transactions_since,
)
from storage_tiers.hot.scan import read_batches
from storage_tiers.records.batch import HEADER_BYTES, read_header, records_payload
from storage_tiers.records.batch_walk import WHOLE, find_batch
from storage_tiers.records.decoder import decode_batch
from storage_tiers.records.walker import find_timestamp
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction, SharedFile, TimestampOffset

#: Bytes of one read in a batch lookup: usually an index interval and the header of the wanted batch.
LOOKUP_BYTES = 4096 + HEADER_BYTES


_DAMAGED = "look at it with `tidelog log dump {}`, and put it back from a copy"


class BatchSpan(NamedTuple):
    """A batch in its segment: byte position, size in bytes, base offset."""

    position: int
    size: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A planner's view of a segment: offsets [base, end), sizes in bytes, times in ms.

    `first_append_ms` is the steady time of the first append, -1 for an empty segment. After a restart it is the time of the
    file's last change or of the start, whichever is earlier. For the newest segment it is the time of its first record, if that
    is earlier.
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
    """One segment of a log: a `.log` file with its indexes. Offsets are [base, end), `size` is in bytes, times are in ms since
    1970."""

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
        #: Subtracted from `segment.ms`, so that many partitions do not roll at once.
        self.jitter_ms = 0
        self.stem = os.path.join(directory, f"{base:020d}")
        self.path = self.stem + layout.LOG
        self.base = base
        self.size = size
        self.end = base
        self.first_append_ms = -1
        #: Max timestamp of the first batch, from which rolling by time counts.
        self.first_timestamp: int | None = None
        #: The largest timestamp and the last offset of the batch that has it; for a closed segment use `newest`.
        self.newest_timestamp = NO_TIMESTAMP
        self.newest_offset = -1
        #: Log bytes since the last entry of the offset index.
        self.since_index = 0
        #: Whether the `.index` file exists. The newest segment's file may be out of date.
        self.index_on_disk = index_on_disk
        #: Whether a closed segment has a `.txnindex` file.
        self.has_transactions = False
        #: The indexes in memory; None if the files are searched instead.
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
                    "the node tries again: raise the limit of open files, or repair or replace the disk"
                ) from error
        return self._shared

    def create(self) -> None:
        """Creates the empty log file. OSError if the disk refuses."""
        self._shared = SharedFile(self.path, self._files.open(self.path, create=True, truncate=True))
        self.start_indexes()

    def take_over(self, old: Segment, *, size: int, end: int, newest: TimeEntry, has_transactions: bool) -> None:
        """Makes this the closed segment of rewritten files, which begins where `old` began and has the age of `old`."""
        self.size, self.end = size, end
        self.newest_timestamp, self.newest_offset = newest
        self.first_append_ms = old.first_append_ms
        self.index_on_disk, self.has_transactions = True, has_transactions

    def release_file(self) -> None:
        """Releases the descriptor; answers in flight keep it open."""
        if self._shared is not None:
            self._shared.release()
            self._shared = None

    def cut_file(self) -> int:
        """Truncates the file to `size` and returns its descriptor. OSError or StorageError if the disk refuses."""
        fd = self.file().fd
        if os.fstat(fd).st_size != self.size:
            self._files.truncate(fd, self.size)
        return fd

    # --- indexes ------------------------------------------------------------------------------------------------------
    def start_indexes(self) -> None:
        """Starts with empty indexes in memory, for a new segment or before a walk from the start of the segment."""
        self.offsets, self.times, self._aborted = OffsetIndex(self.base), TimeIndex(self.base), []
        self.newest_timestamp, self.newest_offset = NO_TIME
        self.first_timestamp = None
        self.since_index = 0

    def drop_indexes(self) -> None:
        """Frees the indexes in memory, because the files now hold all of them."""
        self.has_transactions = bool(self._aborted)
        self.offsets = self.times = self._aborted = None
        self.index_on_disk = self._checked = True

    def load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Loads the indexes into memory: from their files, or from the log if those are missing or of another segment."""
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
        self.start_indexes()
        try:
            self.walk(0)
        except (OSError, StorageError):
            # Otherwise a later caller would take the partial indexes for complete ones.
            self.offsets = self.times = self._aborted = None
            self.newest_timestamp, self.newest_offset = NO_TIME
            self.end = end
            raise

    def load_tail(self) -> None:
        """Reads end and newest timestamp of a cleanly closed segment, from its last index entry on.

        StorageError if the file does not end with a whole batch.
        """
        if not self._sound():
            self.load_indexes()
            return
        self.newest_timestamp, self.newest_offset = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base).last()
        self.since_index = 0
        self.walk(StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).last_position())

    def walk(self, position: int) -> None:
        """Adds the batches in [position, size) to the indexes and `end`. StorageError for bytes that are not a batch."""
        for chunk in read_batches(self.file().fd, position, self.size):
            if chunk.stop != WHOLE:
                raise StorageError(
                    f"{self.path}: no record batch at byte {chunk.position} of {self.size}; {_DAMAGED.format(self.path)}"
                )
            for at, size, _, following, _, timestamp in chunk.batches:
                self.add_batch(chunk.position + at, size, following, timestamp)

    def add_batch(self, position: int, size: int, end: int, timestamp: int) -> None:
        """Adds the batch at `position` to the indexes and `end` (Kafka: LogSegment.append)."""
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
        """Removes the batch at `cut` and all later ones from the indexes. The caller truncates the file."""
        offsets, times = self.load_indexes()
        assert self._aborted is not None
        offsets.truncate(cut.position)
        times.truncate(cut.base_offset)
        self._aborted = [entry for entry in self._aborted if entry.last_offset < cut.base_offset]
        self.size, self.end, self.since_index = cut.position, self.base, 0
        self.newest_timestamp, self.newest_offset = times.last()
        if cut.position == 0:
            self.first_timestamp, self.first_append_ms = None, -1
        self.walk(offsets.last_position())

    def remove_offset_index(self) -> None:
        """Removes, durably, the `.index` that a clean stop gave the newest segment. Otherwise recovery after a crash would
        trust a segment that has grown or shrunk since. OSError if the disk refuses."""
        if self.index_on_disk:
            self.load_indexes()
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt ended before the directory was synced
                self._files.unlink(self.stem + layout.OFFSET_INDEX)
            self._files.fsync_dir(os.path.dirname(self.path))
            self.index_on_disk = False

    def close_indexes(self) -> None:
        """Adds the newest timestamp to the time index, where readers of a closed segment look for it."""
        if self.times is not None:
            self.times.maybe_append(self.newest_timestamp, self.newest_offset)

    def encode_time_and_transactions(self) -> list[tuple[str, bytes]]:
        """(path, content) of each index in memory except the offset index."""
        assert self.times is not None and self._aborted is not None
        maps = [(self.stem + layout.TIME_INDEX, self.times.encode())]
        if self._aborted:
            maps.append((self.stem + layout.TRANSACTION_INDEX, encode_transactions(self._aborted)))
        return maps

    def encode_offset_index(self) -> tuple[str, bytes]:
        """(path, content) of the offset index."""
        assert self.offsets is not None
        return self.stem + layout.OFFSET_INDEX, self.offsets.encode()

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are in this segment, in the order of the markers."""
        aborted = self._aborted  # read once: the event loop may free it meanwhile
        if aborted is not None:
            return aborted
        if not self.has_transactions:
            return []
        try:
            return read_transactions(self.stem + layout.TRANSACTION_INDEX)
        except FileNotFoundError:
            return []

    def aborted_since(self, offset: int) -> Iterable[AbortedTransaction]:
        """The transactions of `aborted` that end at or above `offset`."""
        aborted = self._aborted
        if aborted is not None:
            return islice(aborted, bisect_left(aborted, offset, key=attrgetter("last_offset")), None)
        return read_transactions_since(self.stem + layout.TRANSACTION_INDEX, offset) if self.has_transactions else ()

    def add_aborted(self, entry: AbortedTransaction) -> None:
        assert self._aborted is not None
        self._aborted.append(entry)

    def _sound(self) -> bool:
        """Whether the index files can belong to this segment. Checked once."""
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
            return self.load_indexes()[0].lookup(offset)
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
            # Continues at `second`; a batch whose header was seen, but not its end, is skipped.
            position += second + (third if third > HEADER_BYTES else 0)
        if position < self.size:
            raise StorageError(f"{self.path}: no record batch at byte {position}; {_DAMAGED.format(self.path)}")
        return None

    def upper_bound(self, position: int) -> int:
        """An offset above the offsets of all batches before `position`: the offset of the first index entry from `position` on,
        or the end (Kafka: LogSegment.fetchUpperBoundOffset)."""
        if position >= self.size:
            return self.end
        if self.offsets is None:
            if self._sound():
                found = StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).offset_from(position)
            else:
                found = self.load_indexes()[0].offset_from(position)
        else:
            found = self.offsets.offset_from(position)
        return self.end if found is None else found

    def newest(self) -> TimeEntry:
        """The largest timestamp, and the last offset of the batch that has it."""
        if self.newest_offset < 0 and self.offsets is None:
            if self._sound():
                index = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base)
                self.newest_timestamp, self.newest_offset = index.last()
            else:
                self.load_indexes()
        return TimeEntry(self.newest_timestamp, self.newest_offset)

    def newest_from(self, min_offset: int) -> TimeEntry:
        """`newest` among the batches that end above `min_offset`."""
        if min_offset <= self.base:
            return self.newest()
        span, newest = self.find(min_offset), NO_TIME
        if span is None:
            return newest
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

        The first time entry that reaches the timestamp names the batch with the maximum so far. The first batch that reaches
        the timestamp is in the same index interval, because the end of each interval records the maximum so far.
        """
        if self.times is not None:
            entry = self.times.first_at_or_after(timestamp)
            last = self.offsets.last_position() if self.offsets is not None else 0
        elif self._sound():
            entry = StoredTimeIndex(self.stem + layout.TIME_INDEX, self.base).first_at_or_after(timestamp)
            last = StoredOffsetIndex(self.stem + layout.OFFSET_INDEX, self.base).last_position()
        else:
            self.load_indexes()
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
        # Rare: log start is inside this batch.
        for record in decode_batch(batch, verify=False):
            if record.offset >= min_offset and record.timestamp >= timestamp:
                return record.timestamp, record.offset
        return None
    payload = records_payload(batch, header)
    return find_timestamp(payload, header.count, header.base_timestamp, header.base_offset, timestamp)
