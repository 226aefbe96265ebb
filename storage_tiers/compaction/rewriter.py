"""Cleans closed segments of one partition: reads the dirty ones into a map of keys, and writes each group of segments again
beside the old ones, under names that end in `.cleaned`.

No existing file is changed: the owner of the log swaps the files (`storage_tiers.hot.swap`). Runs in any process that
sees the directory.

Invariants: the CRC-32C of every batch is verified when it is read, so that damage never gets a new checksum. A rewritten group
begins and ends at the offsets where its segments do. The group's files are synced before the group is reported. Memory holds
the map, one chunk of reading and one of writing.

The log cannot use the files if it was truncated meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage_tiers.compaction.batches import Cleaned, CleaningRules, clean_batch, is_unneeded, map_keys
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
#: The largest map, in bytes, as for one cleaner thread of Kafka.
MOST_MAP_BYTES = (1 << 31) - 1


class SourceSegment(NamedTuple):
    """A closed, durable segment: `size` bytes of batches of offsets [base, end)."""

    base: int
    end: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """The segments of one cleaning. `segments` are all segments from the oldest on, without a hole; those from offset
    `dirty_start` on are read for keys. No group crosses one of the offsets in `fences`. `aborted` are all aborted transactions
    that overlap the segments. `is_remote`: the segments are the bucket's, fetched one by one when they are read, and their
    files are removed afterwards; `directory` gets the rewritten segments."""

    directory: str
    segments: Sequence[SourceSegment]
    dirty_start: int
    fences: Sequence[int]
    aborted: Sequence[AbortedTransaction]
    segment_bytes: int
    index_interval: int
    is_remote: bool = False


def offset_map(records: int, buffer_bytes: int, load_factor: float, key: bytes) -> OffsetMap:
    """A map of at most `buffer_bytes`, no larger than `records` need, but with room for at least one key. The system allocates
    its memory as keys are added."""
    load_factor = min(max(load_factor, _LEAST_LOAD), 1.0)
    most = min(buffer_bytes, MOST_MAP_BYTES) // SLOT_BYTES
    least, wanted = (int(keys / load_factor) + 2 for keys in (1, records))
    slots = max(least, min(most, wanted))
    table = memoryview(mmap.mmap(-1, slots * SLOT_BYTES)).cast("Q")
    return OffsetMap(table, load_factor, key)


class Rewriter:
    """Runs one cleaning. `counted` grows as it proceeds. `throttle` is called with every number of bytes read or written, and
    may block. `fetch_segment` returns the path of a remote segment's bytes."""

    def __init__(
        self,
        files: Files,
        cleaning: CleaningJob,
        keys: OffsetMap,
        throttle: Callable[[int], None] = lambda _: None,
        fetch_segment: Callable[[SourceSegment], str] | None = None,
    ) -> None:
        self.counted = Cleaned()
        self._files = files
        self._cleaning = cleaning
        self._keys = keys
        self._throttle = throttle
        self._fetch_segment = fetch_segment

    def read_keys(self) -> int:
        """Fills the map from the dirty segments; returns the offset up to which it knows all keys, where this cleaning ends.
        StorageError if the map cannot hold the keys of the first dirty batch, CorruptRecord for damage."""
        try:
            return self._read_keys()
        finally:
            self.counted.keys = self._keys.count

    def _read_keys(self) -> int:
        cleaning = self._cleaning
        seen, reached = CleanedTransactions(cleaning.aborted), cleaning.dirty_start
        for segment in cleaning.segments:
            if segment.end <= cleaning.dirty_start:
                continue
            for chunk in self._chunks(segment):
                mapped = self._map_keys(chunk, seen)
                if mapped > 0:
                    reached = max(reached, chunk.batches[mapped - 1][_NEXT_OFFSET])
                is_full = mapped < len(chunk.batches)
                if is_full and reached == cleaning.dirty_start:
                    raise self._map_too_small(chunk.batches[mapped][_BASE_OFFSET])
                if is_full:
                    return reached
            reached = segment.end
        return reached

    def _map_keys(self, chunk: Chunk, seen: CleanedTransactions) -> int:
        """Adds the keys of a chunk's batches to the map; returns how many batches had room."""
        start, at = self._cleaning.dirty_start, 0
        while (at := self._keys.add_batches(chunk.data, chunk.batches, at, start)) < len(chunk.batches):
            batch, header = _batch(chunk, at)
            if header.next_offset > start and not map_keys(batch, header, self._keys, seen, start):
                break
            at += 1
        return at

    def _map_too_small(self, base_offset: int) -> StorageError:
        return StorageError(
            f"{self._cleaning.directory}: the batch at offset {base_offset} has more keys than the cleaner's map, which holds "
            f"{self._keys.limit}; raise log.cleaner.dedupe.buffer.size or log.cleaner.io.buffer.load.factor"
        )

    def rewrite(self, rules: CleaningRules) -> Iterator[RewrittenSegment | None]:
        """Writes the groups, oldest first, one at each step of the iterator; None for a segment whose batches are all kept
        unchanged. StorageError if the disk refuses, CorruptRecord for damage; the group's files are removed then."""
        seen = CleanedTransactions(self._cleaning.aborted)
        rest = deque(segment for segment in self._cleaning.segments if segment.base <= rules.latest)
        while rest:
            yield self._rewrite_group(rest, rules, seen)

    def _rewrite_group(
        self, rest: deque[SourceSegment], rules: CleaningRules, seen: CleanedTransactions
    ) -> RewrittenSegment | None:
        """Rewrites one group, whose segments it takes from the front of `rest`."""
        group = _Group(self._files, self._cleaning, rest[0].base, self._throttle)
        try:
            while rest and not group.is_complete:
                group.sources.append(rest.popleft())
                for chunk in self._chunks(group.sources[-1]):
                    self._clean_chunk(chunk, group, rest, rules, seen)
            aborted, seen.aborted = seen.aborted, []
            return group.finish(aborted)
        except OSError as error:
            group.remove()
            raise StorageError(
                f"cannot clean {self._cleaning.directory} ({error}); free space, or repair or replace the disk"
            ) from error
        except BaseException:
            group.remove()
            raise
        finally:
            group.close()

    def _clean_chunk(
        self,
        chunk: Chunk,
        group: _Group,
        rest: Sequence[SourceSegment],
        rules: CleaningRules,
        seen: CleanedTransactions,
    ) -> None:
        """Adds to the group the batches of its last segment that are kept. `rest` are the segments after that one."""
        segment_end = group.sources[-1].end
        # The last batch of a segment is cleaned alone: it may be kept although it is empty.
        plain_end = len(chunk.batches) - (chunk.batches[-1][_NEXT_OFFSET] >= segment_end)
        at = 0
        while (at := self._clean_plain(chunk, at, plain_end, group, rules)) < len(chunk.batches):
            batch, header = _batch(chunk, at)
            is_last = header.next_offset >= segment_end
            kept = clean_batch(batch, header, self._keys, seen, rules, is_last=is_last)
            if is_last and kept is not None:
                group.is_complete = not group.takes(rest, len(kept))
                if not group.is_complete and is_unneeded(kept, rules):
                    kept = None
            self._write_kept(batch, header, kept, group)
            at += 1

    def _clean_plain(self, chunk: Chunk, at: int, end: int, group: _Group, rules: CleaningRules) -> int:
        """Cleans the plain batches from index `at` on, the common case, in one call of the kernel. Returns the index of the
        next batch that is not plain."""
        batches, latest, lasts = chunk.batches, rules.latest, rules.last_offsets
        stopped, records, written, kept = self._keys.clean_batches(chunk.data, batches, at, end, latest, lasts)
        if stopped == at:
            return at
        view, counted = memoryview(written), self.counted
        for position, size, records_kept, next_offset, highest_ms, is_changed in kept:
            batch = view[position : position + size]
            if is_changed:
                set_crc(batch)
                group.is_changed = True
            counted.records_kept += records_kept
            group.add_whole(batch, next_offset, highest_ms)
        if len(kept) < stopped - at:
            group.is_changed = True
        counted.bytes_written += len(written)
        counted.records_read += records
        counted.bytes_read += sum(scanned[_SIZE] for scanned in batches[at:stopped])
        return stopped

    def _write_kept(
        self, batch: memoryview, header: BatchHeader, kept: memoryview | bytes | None, group: _Group
    ) -> None:
        counted = self.counted
        counted.records_read += max(header.count, 0)
        counted.bytes_read += header.size
        if kept is not batch:
            group.is_changed = True
        if kept is not None:
            counted.bytes_written += len(kept)
            counted.records_kept += read_header(kept).count
            group.add(kept)

    def _chunks(self, source: SourceSegment) -> Iterator[Chunk]:
        if self._fetch_segment is None:
            path = os.path.join(self._cleaning.directory, layout.file_name(source.base, layout.LOG))
        else:
            path = self._fetch_segment(source)
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
                self._throttle(len(chunk.data))
                expected = chunk.batches[-1][_NEXT_OFFSET]
                yield chunk
        finally:
            os.close(fd)
            if self._fetch_segment is not None:
                with contextlib.suppress(OSError):
                    self._files.unlink(path)


class _Group:
    """Neighbouring segments, `sources`, that are cleaned into one new segment, and the files of the new one. `is_complete`: no
    further source joins. `is_changed`: the batches written are not those of the sources."""

    def __init__(self, files: Files, cleaning: CleaningJob, base: int, throttle: Callable[[int], None]) -> None:
        self.sources: list[SourceSegment] = []
        self.is_complete = False
        self.is_changed = False
        self._cleaning = cleaning
        self._files = files
        self._segment = Segment(files, cleaning.directory, base, interval=cleaning.index_interval)
        self._segment.start_indexes()
        self._throttle = throttle
        self._parts: list[memoryview | bytes] = []
        self._waiting = 0
        self._written = 0
        self._paths = [self._segment.path + layout.CLEANED]
        self._fd = files.open(self._paths[0], create=True, truncate=True)

    def takes(self, rest: Sequence[SourceSegment], size: int) -> bool:
        """Whether the first segment of `rest` joins the group once a batch of `size` bytes is added. Unlike Kafka's
        `groupSegmentsBySize`, it counts the group's bytes after cleaning, so a nearly empty log keeps no chain of tiny
        segments."""
        if not rest or rest[0].base in self._cleaning.fences or len(self.sources) == MOST_SOURCES:
            return False
        fits = self._segment.size + size + rest[0].size <= self._cleaning.segment_bytes
        return fits and rest[0].end - self.sources[0].base <= _MOST_OFFSETS

    def add(self, batch: memoryview | bytes) -> None:
        header = read_header(batch)
        # An emptied batch keeps its timestamp for the producer state, but has no record that a search by time could find.
        timestamp = header.max_timestamp if header.count > 0 else NO_TIMESTAMP
        self.add_whole(batch, header.next_offset, timestamp)

    def add_whole(self, batch: memoryview | bytes, next_offset: int, timestamp: int) -> None:
        """Adds a batch whose header is known; `timestamp` is its records' highest, in ms."""
        segment, size = self._segment, len(batch)
        segment.add_batch(segment.size, size, next_offset, timestamp)
        segment.size += size
        self._parts.append(batch)
        self._waiting += size
        if self._waiting >= WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._files.pwrite(self._fd, (b"".join(self._parts),), self._written)
        self._throttle(self._waiting)
        self._written += self._waiting
        self._parts, self._waiting = [], 0

    def finish(self, aborted: Sequence[AbortedTransaction]) -> RewrittenSegment | None:
        """Makes the new files durable. Removes them and returns None for a single segment that cleaning leaves unchanged.
        `aborted` become the new segment's transaction index. OSError if the disk refuses, CorruptRecord if the segments lack
        batches at their end."""
        segment, group = self._segment, self.sources
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
    """Removes the files that an ended cleaner left behind. The caller knows that no swap needs them. Blocking; never fails."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(layout.CLEANED):
                files.unlink(os.path.join(directory, name))


def _batch(chunk: Chunk, index: int) -> tuple[memoryview, BatchHeader]:
    at, size = chunk.batches[index][:2]
    return memoryview(chunk.data)[at : at + size], read_header(chunk.data, at)


#: The most segments that become one: their files are renamed in one turn of the broker's event loop.
MOST_SOURCES = 64
#: Offsets that one segment's index can hold.
_MOST_OFFSETS = (1 << 31) - 1
