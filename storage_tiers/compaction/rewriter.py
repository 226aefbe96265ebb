"""Cleans closed segments of one partition: reads the dirty ones into a map of keys, and writes each group of segments again
beside the old ones, under names that end in `.cleaned`.

No existing file is changed: the owner of the log exchanges the files (`storage_tiers.hot.swap`). Runs in any process that
sees the directory.

Invariants: every batch that is read has the right CRC-32C, so that damage is never written again under a new checksum; a
rewritten group begins and ends at the offsets where its segments do; its files are synced before they are reported. Memory is
the map's, one chunk of reading and one of writing.

Not promised: that the log can take the files; it may have been truncated meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage_tiers.compaction.batches import Cleaned, Policy, clean_batch, goes_emptied, note_keys
from storage_tiers.compaction.offset_map import SLOT_BYTES, OffsetMap
from storage_tiers.compaction.transactions import CleanedTransactions
from storage_tiers.errors import CorruptRecord, StorageError
from storage_tiers.files import Files
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import TimeEntry
from storage_tiers.hot.scan import Chunk, read_batches
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.records.batch import BatchHeader, read_header, set_crc
from storage_tiers.records.batch_walk import WHOLE, recover_scan
from storage_tiers.types import NO_EPOCH, NO_TIMESTAMP, AbortedTransaction

#: Bytes that are gathered before they are written.
WRITE_BYTES = 1 << 20
#: Fields of a scanned batch (`hot.scan.ScannedBatch`).
_SIZE, _BASE_OFFSET, _NEXT_OFFSET = 1, 2, 3


#: The least share of a map that keys may take.
_LEAST_LOAD = 0.01
#: Largest map, as Kafka's of one thread.
MOST_MAP_BYTES = (1 << 31) - 1


class SourceSegment(NamedTuple):
    """A closed, durable segment: `size` bytes of batches of offsets [base, end)."""

    base: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """The segments of one cleaning. `segments` are all from the oldest on, without a hole; those from offset `dirty_start` on
    are read for keys. No group crosses one of the offsets in `fences`. `aborted` are all aborted transactions that overlap the
    segments. `is_remote`: the segments are the bucket's, brought one by one when they are read, and their files are removed
    afterwards; `directory` takes the rewritten ones."""

    directory: str
    segments: Sequence[SourceSegment]
    dirty_start: int
    fences: Sequence[int]
    aborted: Sequence[AbortedTransaction]
    segment_bytes: int
    index_interval: int
    is_remote: bool = False


def offset_map(records: int, buffer_bytes: int, load_factor: float, key: bytes) -> OffsetMap:
    """A map of at most `buffer_bytes`, and no larger than `records` need, but with room for a key. Its memory is taken as keys
    come."""
    load_factor = min(max(load_factor, _LEAST_LOAD), 1.0)
    most = min(buffer_bytes, MOST_MAP_BYTES) // SLOT_BYTES
    least, wanted = (int(keys / load_factor) + 2 for keys in (1, records))
    slots = max(least, min(most, wanted))
    table = memoryview(mmap.mmap(-1, slots * SLOT_BYTES)).cast("Q")
    return OffsetMap(table, load_factor, key)


class Rewriter:
    """`counted` grows as it goes. `spend` is called with every number of bytes read or written, and may wait. `bring` returns
    the path of a remote segment's bytes."""

    def __init__(
        self,
        files: Files,
        cleaning: CleaningJob,
        keys: OffsetMap,
        spend: Callable[[int], None] = lambda _: None,
        bring: Callable[[SourceSegment], str] | None = None,
    ) -> None:
        self.counted = Cleaned()
        self._files = files
        self._cleaning = cleaning
        self._keys = keys
        self._spend = spend
        self._bring = bring

    def read_keys(self) -> int:
        """Fills the map from the dirty segments; returns the offset up to which it knows all keys, where this cleaning ends.
        StorageError if the map cannot hold the keys of the first dirty batch, CorruptRecord for damage."""
        try:
            return self._read_keys()
        finally:
            self.counted.keys = self._keys.count

    def _read_keys(self) -> int:
        cleaning = self._cleaning
        # One that ended below would take its producer's next transaction for aborted: its marker is not shown.
        overlapping = [each for each in cleaning.aborted if each.last_offset >= cleaning.dirty_start]
        seen, reached = CleanedTransactions(overlapping), cleaning.dirty_start
        for segment in cleaning.segments:
            if segment.end <= cleaning.dirty_start:
                continue
            for chunk in self._chunks(segment):
                noted = self._note_keys(chunk, seen)
                if noted > 0:
                    reached = max(reached, chunk.batches[noted - 1][_NEXT_OFFSET])
                if noted < len(chunk.batches):
                    if reached == cleaning.dirty_start:
                        raise StorageError(
                            f"{cleaning.directory}: the batch at offset {chunk.batches[noted][_BASE_OFFSET]} has more keys "
                            f"than the cleaner's map, which holds {self._keys.limit}; raise log.cleaner.dedupe.buffer.size "
                            "or log.cleaner.io.buffer.load.factor"
                        )
                    return reached
            reached = segment.end
        return reached

    def _note_keys(self, chunk: Chunk, seen: CleanedTransactions) -> int:
        """Adds the keys of a chunk's batches to the map; returns how many batches had room."""
        start, at = self._cleaning.dirty_start, 0
        while (at := self._keys.add_batches(chunk.data, chunk.batches, at, start)) < len(chunk.batches):
            batch, header = _batch(chunk, at)
            if header.next_offset > start and not note_keys(batch, header, self._keys, seen, start):
                break
            at += 1
        return at

    def rewrite(self, policy: Policy) -> Iterator[RewrittenSegment | None]:
        """Writes the groups, oldest first, one each time it is asked; None for a segment of which every batch stays as it is.
        StorageError if the disk refuses, CorruptRecord for damage; what was written of a group is removed then."""
        seen = CleanedTransactions(self._cleaning.aborted)
        rest = deque(segment for segment in self._cleaning.segments if segment.base <= policy.latest)
        while rest:
            yield self._rewrite(rest, seen, policy)

    def _rewrite(
        self, rest: deque[SourceSegment], seen: CleanedTransactions, policy: Policy
    ) -> RewrittenSegment | None:
        """Takes the group's segments from `rest`."""
        target = _Target(self._files, self._cleaning, rest[0].base, self._spend)
        group: list[SourceSegment] = []
        is_last = False
        try:
            while rest and not is_last:
                segment = rest.popleft()
                group.append(segment)
                for chunk in self._chunks(segment):
                    # The last batch of a segment is judged alone: it may stay though emptied.
                    end = len(chunk.batches) - (chunk.batches[-1][_NEXT_OFFSET] >= segment.end)
                    at = 0
                    while (at := self._keep_batches(chunk, at, end, policy, target)) < len(chunk.batches):
                        batch, header = _batch(chunk, at)
                        ends = header.next_offset >= segment.end
                        stays = clean_batch(batch, header, self._keys, seen, policy, is_last=ends)
                        if ends and stays is not None:
                            is_last = not _joins(self._cleaning, rest, group, target.size + len(stays))
                            if not is_last and goes_emptied(stays, policy):
                                stays = None
                        self._keep(batch, header, stays, target)
                        at += 1
            aborted, seen.aborted = seen.aborted, []
            return target.finish(group, aborted)
        except OSError as error:
            target.remove()
            raise StorageError(
                f"cannot clean {self._cleaning.directory} ({error}); free space, or repair or replace the disk"
            ) from error
        except BaseException:
            target.remove()
            raise
        finally:
            target.close()

    def _keep_batches(self, chunk: Chunk, at: int, end: int, policy: Policy, target: _Target) -> int:
        """Cleans the plain batches from index `at` on, which are most, in one call of the kernel; returns the index of the
        next that is none."""
        batches, latest, lasts = chunk.batches, policy.latest, policy.last_offsets
        stopped, records, written, rows = self._keys.keep_batches(chunk.data, batches, at, end, latest, lasts)
        if stopped == at:
            return at
        view, counted = memoryview(written), self.counted
        for begin, size, kept, following, timestamp, is_changed in rows:
            if is_changed:
                set_crc(view[begin : begin + size])
                target.is_changed = True
            counted.records_kept += kept
            target.add_whole(view[begin : begin + size], following, timestamp)
        if len(rows) < stopped - at:
            target.is_changed = True
        counted.bytes_written += len(written)
        counted.records_read += records
        counted.bytes_read += sum(batch[_SIZE] for batch in batches[at:stopped])
        return stopped

    def _keep(self, batch: memoryview, header: BatchHeader, stays: memoryview | bytes | None, target: _Target) -> None:
        counted = self.counted
        counted.records_read += max(header.count, 0)
        counted.bytes_read += header.size
        if stays is not batch:
            target.is_changed = True
        if stays is not None:
            counted.bytes_written += len(stays)
            counted.records_kept += read_header(stays).count
            target.add(stays)

    def _chunks(self, source: SourceSegment) -> Iterator[Chunk]:
        if self._bring is None:
            path = os.path.join(self._cleaning.directory, layout.file_name(source.base, layout.LOG))
        else:
            path = self._bring(source)
        expected = source.base

        def scan(data: bytes) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]:
            return recover_scan(data, 0, expected, NO_EPOCH)

        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error}); repair or replace the disk") from error
        try:
            for chunk in read_batches(fd, 0, source.size, scan):
                if chunk.stop != WHOLE:
                    raise CorruptRecord(
                        f"{path}: no sound record batch at byte {chunk.position} of {source.size}; look at it with "
                        f"`tidelog log dump {path}`, and put it back from a copy"
                    )
                self._spend(len(chunk.data))
                expected = chunk.batches[-1][_NEXT_OFFSET]
                yield chunk
        finally:
            os.close(fd)
            if self._bring is not None:
                with contextlib.suppress(OSError):
                    self._files.unlink(path)


class _Target:
    """The new files of one group."""

    def __init__(self, files: Files, cleaning: CleaningJob, base: int, spend: Callable[[int], None]) -> None:
        self.is_changed = False
        self._files = files
        self._segment = Segment(files, cleaning.directory, base, interval=cleaning.index_interval)
        self._segment.start_indexes()
        self._spend = spend
        self._parts: list[memoryview | bytes] = []
        self._waiting = 0
        self._written = 0
        self._paths = [self._segment.path + layout.CLEANED]
        self._fd = files.open(self._paths[0], create=True, truncate=True)

    @property
    def size(self) -> int:
        """Bytes of the batches added."""
        return self._segment.size

    def add(self, batch: memoryview | bytes) -> None:
        header = read_header(batch)
        # An emptied batch keeps its timestamp for its producer's sake, and has no record that a search by time could find.
        timestamp = header.max_timestamp if header.count > 0 else NO_TIMESTAMP
        self.add_whole(batch, header.next_offset, timestamp)

    def add_whole(self, batch: memoryview | bytes, next_offset: int, timestamp: int) -> None:
        """Adds a batch whose header is known; `timestamp` is its records' highest, in ms."""
        segment, size = self._segment, len(batch)
        segment.note(segment.size, size, next_offset, timestamp)
        segment.size += size
        self._parts.append(batch)
        self._waiting += size
        if self._waiting >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._files.pwrite(self._fd, (b"".join(self._parts),), self._written)
        self._spend(self._waiting)
        self._written += self._waiting
        self._parts, self._waiting = [], 0

    def finish(self, group: Sequence[SourceSegment], aborted: Sequence[AbortedTransaction]) -> RewrittenSegment | None:
        segment = self._segment
        if segment.end != group[-1].end:
            raise CorruptRecord(f"{segment.path} ends at offset {segment.end}, not at {group[-1].end}")
        if not self.is_changed and len(group) == 1:
            self.remove()
            return None
        self._flush()
        self._files.fsync(self._fd)
        for entry in aborted:
            segment.add_aborted(entry)
        segment.close_indexes()
        for path, content in (*segment.encode_time_and_transactions(), segment.encode_offset_index()):
            self._write(path + layout.CLEANED, content)
        newest = TimeEntry(segment.newest_timestamp, segment.newest_offset)
        replaces = tuple((each.base, each.size) for each in group)
        return RewrittenSegment(group[0].base, segment.end, segment.size, newest, bool(aborted), replaces)

    def _write(self, path: str, content: bytes) -> None:
        self._paths.append(path)
        fd = self._files.open(path, create=True, truncate=True)
        try:
            self._files.pwrite(fd, (content,), 0)
            self._files.fsync(fd)
        finally:
            self._files.close(fd)

    def remove(self) -> None:
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._files.unlink(path)

    def close(self) -> None:
        self._files.close(self._fd)


def remove_cleaned(files: Files, directory: str) -> None:
    """Removes what a cleaner that has ended left behind, where no exchange has begun. Blocking; never fails."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(layout.CLEANED):
                files.unlink(os.path.join(directory, name))


def _batch(chunk: Chunk, index: int) -> tuple[memoryview, BatchHeader]:
    at, size = chunk.batches[index][:2]
    return memoryview(chunk.data)[at : at + size], read_header(chunk.data, at)


def _joins(cleaning: CleaningJob, rest: Sequence[SourceSegment], group: Sequence[SourceSegment], written: int) -> bool:
    """Whether the next segment becomes one with the `written` bytes of the group. Unlike Kafka's `groupSegmentsBySize`, the
    group counts as cleaned: of a log that compaction nearly empties no chain of tiny segments is left."""
    if not rest or rest[0].base in cleaning.fences or len(group) == MOST_SOURCES:
        return False
    fits = written + rest[0].size <= cleaning.segment_bytes
    return fits and rest[0].end - group[0].base <= _MOST_OFFSETS


#: Segments that become one: their files are renamed in one turn of the broker's event loop.
MOST_SOURCES = 64
#: Offsets that one segment's index can hold.
_MOST_OFFSETS = (1 << 31) - 1
