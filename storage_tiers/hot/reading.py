"""Reads a hot log: batches by offset, records by time, aborted transactions, producers, epochs, and byte ranges to offload.

Invariant: an answer holds a counted descriptor, so its bytes survive an eviction or truncation. Reading changes only which
closed segments keep their descriptors and which producer snapshots are on disk.

Records above the high watermark are not hidden here: the caller passes the offset up to which it may read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from storage_tiers.clock import Clock
from storage_tiers.errors import OffsetOutOfRange, StorageError
from storage_tiers.hot.epoch_scan import EpochScan
from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.segments import Segments
from storage_tiers.hot.snapshots import Snapshots
from storage_tiers.records.batch import HEADER_BYTES, read_header
from storage_tiers.types import AbortedTransaction, FileSlice, TimestampOffset, TopicPartition

#: The most segments in one answer, and so the most files that it holds open.
MOST_SEGMENTS = 8


class OffloadSource(NamedTuple):
    """Whole batches of one segment: bytes [position, position + length) of `path` hold [base_offset, end_offset)."""

    path: str
    position: int
    length: int
    base_offset: int
    end_offset: int


class LogReader:
    """The read side of one log; shares its segments, end and producer snapshots."""

    __slots__ = ("_clock", "_end", "_partition", "_segments", "_snapshots")

    def __init__(
        self, partition: TopicPartition, segments: Segments, end: LogEnd, snapshots: Snapshots, clock: Clock
    ) -> None:
        self._partition = partition
        self._segments = segments
        self._end = end
        self._snapshots = snapshots
        self._clock = clock

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        upto_offset: int,
        min_one: bool = True,
        over_gaps: bool = True,
        aborted: list[AbortedTransaction] | None = None,
    ) -> list[FileSlice]:
        """Bytes from the batch that holds `offset` on, ending before the batch that reaches `upto_offset`; one slice for each
        of at most MOST_SEGMENTS segments.

        The answer has at most `max_bytes`, so its last batch may be partial. The first batch is never partial. If it exceeds
        the limit, it is sent whole with `min_one`; otherwise the answer is empty. The answer is also empty at the log end. The
        caller releases the slices' files. OffsetOutOfRange outside [local start, log end]. A closed segment that ends before
        `offset` is a gap left by compaction, or damage: the next segment is read, or without `over_gaps` StorageError is
        raised. Adds to `aborted` the transactions that overlap the answer, for readers of committed records.
        """
        segments = self._segments.all
        if not segments[0].base <= offset <= self._end.offset:
            raise OffsetOutOfRange(
                f"{self._partition}: offset {offset} is outside of [{segments[0].base}, {self._end.offset}]; "
                "ask ListOffsets where the log begins"
            )
        at = self._segments.index_of(offset)
        piece = None
        while at < len(segments) and (piece := self._piece(at, offset, max_bytes, upto_offset, min_one)) is None:
            if not over_gaps and at + 1 < len(segments):
                raise StorageError(f"{segments[at].path} ends before offset {offset}; put the file back from a copy")
            at += 1
        if piece is None or piece.length == 0:
            return []
        found, room, last = [piece], max_bytes - piece.length, at
        # Consumers mistake an answer without records for one that their limit cut short, so no answer consists of emptied
        # segments alone.
        while last + 1 < len(segments) and len(found) < MOST_SEGMENTS:
            segment = segments[last]
            if found[-1].position + found[-1].length < segment.size:
                break
            try:
                if not over_gaps and segment.find(segment.end - 1) is None:
                    break
                piece = self._piece(last + 1, segment.end, room, upto_offset, False)
            except StorageError:
                break
            if piece is None or piece.length == 0:
                break
            found.append(piece)
            room, last = room - piece.length, last + 1
        if aborted is not None:
            end = segments[last].upper_bound(found[-1].position + found[-1].length)
            aborted += self.aborted_transactions(offset, end)
        for piece in found:
            piece.file.acquire()
        for segment in segments[at : last + 1]:
            self._segments.was_read(segment)
        return found

    def _piece(self, at: int, offset: int, max_bytes: int, upto_offset: int, min_one: bool) -> FileSlice | None:
        """Bytes of the segment at index `at`, in a file that is not acquired yet; None if it has no batch from `offset` on."""
        segment = self._segments.all[at]
        span = segment.find(offset)
        if span is None:
            return None
        end = segment.size
        if upto_offset < segment.end:
            bound = segment.find(upto_offset)
            end = bound.position if bound is not None else end
        length = min(end - span.position, max_bytes)
        if length < span.size:
            length = min(span.size, end - span.position) if min_one else 0  # part of a batch is useless
        return FileSlice(segment.file(), span.position, max(length, 0))

    # --- by time ------------------------------------------------------------------------------------------------------
    def offset_for_timestamp(self, timestamp: int, log_start: int) -> TimestampOffset | None:
        """The first record by offset, from `log_start` on, whose timestamp (ms) is at least `timestamp`."""
        for segment in self._segments.all:
            if segment.end > log_start and segment.newest().timestamp >= timestamp:
                found = segment.first_at_or_after(timestamp, log_start)
                self._segments.was_read(segment)
                if found is not None:
                    return found
        return None

    def max_timestamp(self, log_start: int) -> TimestampOffset | None:
        """The record from `log_start` on with the largest timestamp, the first one if several have it; None if no record has a
        timestamp."""
        best: TimestampOffset | None = None
        for segment in self._segments.all:
            if segment.end > log_start and (best is None or segment.newest().timestamp > best.timestamp):
                newest = segment.newest_from(log_start)
                if newest.timestamp >= 0 and (best is None or newest.timestamp > best.timestamp):
                    best = segment.first_at_or_after(newest.timestamp, log_start) or best
                self._segments.was_read(segment)
        return best

    # --- for offloading -----------------------------------------------------------------------------------------------
    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start, end), for readers of committed records (Kafka: collectAborted)."""
        return _aborted(self._segments.since(start), start, end)

    def aborted_reader(self, start: int, end: int) -> Callable[[], list[AbortedTransaction]]:
        """Returns a function that does the same as `aborted_transactions` in any thread, on the present segments. A segment
        that is gone when the function is called adds none."""
        return partial(_aborted, tuple(self._segments.since(start)), start, end)

    def offload_source(self, start: int, end_limit: int, *, include_active: bool = False) -> OffloadSource | None:
        """The whole batches of one segment, from the one that holds `start`, that end at or before `end_limit`.

        Looks at closed segments only, unless `include_active`. None if there are no such batches.
        """
        for segment in self._segments.since(start):
            if segment is self._segments.newest and not include_active:
                return None
            span = segment.find(start)
            if span is None:
                continue
            end, end_offset = segment.size, segment.end
            if end_limit < segment.end:
                bound = segment.find(end_limit)
                if bound is not None:
                    end, end_offset = bound.position, bound.base_offset
            self._segments.was_read(segment)
            if end <= span.position:
                return None
            return OffloadSource(segment.path, span.position, end - span.position, span.base_offset, end_offset)
        return None

    # --- producers ----------------------------------------------------------------------------------------------------
    def state_at(self, offset: int) -> bytes:
        """The producer state at exactly `offset` (a batch boundary in [local start, log end])."""
        producers = self._end.producers if offset == self._end.offset else self.producers_at(offset)
        return producers.state()

    def producers_at(self, offset: int) -> ProducerStateManager:
        """The producer state after the batches before `offset`, read from snapshots and segments."""
        segments = self._segments
        try:
            return self._snapshots.state_at(segments.all, offset, now_ms=self._clock.steady_ms())
        finally:
            for segment in segments.all:
                segments.was_read(segment)

    def snapshot_paths(self, offset: int) -> tuple[str, str]:
        """The paths of the producer snapshot at `offset` and of its earlier batches, whether they exist or not
        (`snapshots.is_sound`)."""
        return self._snapshots.paths(offset)

    def write_snapshot(self, offset: int) -> None:
        """Writes the producer state at exactly `offset` (see `state_at`). StorageError if the disk refuses."""
        try:
            self._snapshots.write(offset, self.state_at(offset))
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot write a snapshot ({error}); free space, or repair or replace the disk"
            ) from error

    # --- epochs -------------------------------------------------------------------------------------------------------
    def epoch_on_disk(self, offset: int) -> tuple[int, int] | None:
        """(base offset, leader epoch) from the header of the first local batch that ends at or after `offset`, or None.
        StorageError if it cannot be read."""
        for segment in self._segments.since(offset):
            span = segment.find(offset)
            if span is None:
                continue
            try:
                header = read_header(os.pread(segment.file().fd, HEADER_BYTES, span.position))
            except OSError as error:
                raise StorageError(f"{segment.path} cannot be read ({error}); repair or replace the disk") from error
            self._segments.was_read(segment)
            return span.base_offset, header.leader_epoch
        return None

    def scan_epochs(self, offset: int) -> EpochScan:
        """Prepares to read the epochs of the local batches that end at or after `offset`. StorageError if a file cannot be
        opened."""
        spans = []
        for segment in self._segments.all:
            span = segment.find(offset) if segment.size and segment.end > offset else None
            if span is not None:
                spans.append((segment.file().acquire(), span.position, segment.size))
                self._segments.was_read(segment)
        return EpochScan(spans)


def _aborted(segments: Iterable[Segment], start: int, end: int) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for segment in segments:
        for entry in segment.aborted_since(start):
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found
