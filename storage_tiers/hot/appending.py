"""Appends to a hot log, one batch at a time as leader or fetched batches as follower, and rolls its segments.

`append` is the broker's hot path: it makes one gathered write, adds an index entry every few kilobytes, and otherwise only
assigns numbers. Rare cases (a roll, a first batch, a failed write) have methods of their own.

Invariants: `_writable` is the newest segment once its indexes are in memory and no bytes follow its end in the file, else None;
`_fd` and `_limits` belong to that segment. A thread's write past the log end is stopped before anything else changes the log.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NoReturn

from storage_tiers.errors import CorruptRecord, RecordBatchTooLarge, StorageError
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.durability import Durability
from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.rolling import RollLimits
from storage_tiers.hot.scan import Chunk, ScannedBatch, end_transaction, replay
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.segments import Segments
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records import batch_walk
from storage_tiers.records.batch import CONTROL_MASK, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader
from storage_tiers.types import NO_PRODUCER_ID, AbortedTransaction

# The fields that a leader writes: base offset, batch length (unchanged), leader epoch.
_assigned = struct.Struct(">qii").pack


class Appender:
    """Appends to one log and advances its segments and end. `rolled` turns True when a segment is closed; the code that reads
    it resets it."""

    __slots__ = (
        "_clock",
        "_durability",
        "_end",
        "_fd",
        "_files",
        "_limits",
        "_partition",
        "_segments",
        "_settings",
        "_writable",
        "_write",
        "rolled",
    )

    def __init__(
        self,
        segments: Segments,
        end: LogEnd,
        durability: Durability,
        ground: LogGround,
        settings: LogSettings,
    ) -> None:
        self._segments = segments
        self._end = end
        self._durability = durability
        self._partition = ground.partition
        self._settings = settings
        self._files = ground.files
        self._clock = ground.clock
        self._limits = RollLimits()
        self._writable: Segment | None = None
        self._fd = -1
        # The write that a thread makes past the log end.
        self._write: BatchWrite | None = None
        self.rolled = False

    # --- as leader ----------------------------------------------------------------------------------------------------
    def append(self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> int:
        """Appends one validated batch as leader and returns its base offset.

        The caller's bytes are neither changed nor copied: offset and epoch are written from a separate buffer. StorageError
        leaves the log unchanged, readable and ready for the next attempt. RecordBatchTooLarge if no segment can hold the batch.
        """
        base, size = self._end.offset, header.size
        segment = self._writable or self._make_writable(now_ms)
        if self._limits.exceeded_by(segment.size + size, base + header.last_offset_delta, header.max_timestamp, now_ms):
            segment = self._roll_for(size, now_ms)
        try:
            self._files.pwrite(
                self._fd, (_assigned(base, size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:]), segment.size
            )
        except OSError as error:
            self._raise_refused(segment, error)
        self._advance_end(segment, batch, header, base, leader_epoch, now_ms)
        return base

    def _advance_end(
        self, segment: Segment, batch: memoryview, header: BatchHeader, base: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Makes the batch that was written at the end of `segment` part of the log."""
        size, position, timestamp, end = header.size, segment.size, header.max_timestamp, self._end
        last = base + header.last_offset_delta
        if timestamp > segment.newest_timestamp:
            segment.newest_timestamp = timestamp
            segment.newest_offset = last
        if segment.since_index > segment.interval:
            self._index(segment, last, position)
        segment.since_index += size
        segment.size = position + size
        segment.end = end.offset = last + 1
        if position == 0:
            self._first_batch(segment, timestamp, now_ms)
        if leader_epoch != end.epochs.latest:
            end.epochs.assign(leader_epoch, base)
        if header.producer_id != NO_PRODUCER_ID:
            self._update_producers(segment, batch, header, base, now_ms)

    def begin_write(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> BatchWrite:
        """Creates a write for a thread to `run` before `finish_write`. Raises as `append` does.

        There is one write at a time. An append, a roll or any other change of the log stops it."""
        segment, last = self._writable or self._make_writable(now_ms), self._end.offset + header.last_offset_delta
        if self._limits.exceeded_by(segment.size + header.size, last, header.max_timestamp, now_ms):
            segment = self._roll_for(header.size, now_ms)
        write = BatchWrite(self._files, segment, batch)
        self._write, self._writable = write, None  # so that a concurrent append passes through `_make_writable`
        return write

    def is_writing(self, write: BatchWrite) -> bool:
        """Whether this write is still in progress; False once something has stopped it."""
        return self._write is write

    def finish_write(
        self, write: BatchWrite, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> int:
        """Makes the batch of a completed, unstopped write part of the log and returns its base offset. StorageError if the
        write failed."""
        base, segment = self._end.offset, write.segment
        self._write = None
        write.file.release()
        try:
            if write.error is not None:
                raise write.error
            head = (_assigned(base, header.size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:HEADER_BYTES])
            self._files.pwrite(self._fd, head, segment.size)
        except OSError as error:
            self._raise_refused(segment, error)
        self._writable = segment
        self._limits.arm(segment, self._settings)
        self._advance_end(segment, batch, header, base, leader_epoch, now_ms)
        return base

    def append_as_follower(self, batches: memoryview) -> int:
        """Appends whole batches that already carry offsets and epochs; returns the new log end.

        CorruptRecord, before anything is written, if a batch is damaged, overlaps the log, or has an older epoch than its
        predecessor. A gap is legal. StorageError as in `append`; batches written before the error stay.
        """
        found, stopped, stop = batch_walk.recover_scan(batches, 0, self._end.offset, self._end.epochs.latest)
        if stop != batch_walk.WHOLE:
            raise CorruptRecord(
                f"{self._partition}: the fetched bytes do not continue offset {self._end.offset} at byte {stopped} "
                f"(walker stop {stop}); fetch again"
            )
        now_ms = self._clock.steady_ms()
        index = 0
        while index < len(found):
            index = self._append_group(batches, found, index, now_ms)
        return self._end.offset

    def _append_group(self, batches: memoryview, found: list[ScannedBatch], first: int, now_ms: int) -> int:
        """Writes the batches from index `first` on that fit one segment, in one write; returns the next index."""
        segment = self._writable or self._make_writable(now_ms)
        start, size, _, following, _, timestamp = found[first]
        if self._limits.exceeded_by(segment.size + size, following - 1, timestamp, now_ms) and segment.size:
            segment = self._roll_for(0, now_ms)
        position, stop, end = segment.size, first, start
        for at, length, _, following, _, timestamp in found[first:]:
            reached = position + (at - start) + length
            if stop > first and self._limits.exceeded_by(reached, following - 1, timestamp, now_ms):
                break
            stop, end = stop + 1, at + length
        try:
            self._files.pwrite(self._fd, (batches[start:end],), position)
        except OSError as error:
            self._raise_refused(segment, error)
        group = found[first:stop]
        for at, length, base, following, epoch, timestamp in group:
            segment.add_batch(position + at - start, length, following, timestamp)
            if epoch > self._end.epochs.latest:
                self._end.epochs.assign(epoch, base)
        segment.size = position + end - start
        self._end.offset = segment.end
        if position == 0:
            self._first_batch(segment, group[0][5], now_ms)
        self._limits.check_index_space(segment, self._settings)
        for ended in replay(Chunk(0, batches, group, batch_walk.WHOLE), self._end.producers, now_ms=now_ms):
            if ended.aborted:
                segment.add_aborted(AbortedTransaction(*ended[:4]))
        return stop

    def _update_producers(
        self, segment: Segment, batch: memoryview, header: BatchHeader, base: int, now_ms: int
    ) -> None:
        if not header.attributes & CONTROL_MASK:
            self._end.producers.update(header, base, now_ms=now_ms)
            return
        ended = end_transaction(batch, base, self._end.producers, now_ms=now_ms)
        if ended is not None and ended.aborted:
            segment.add_aborted(AbortedTransaction(*ended[:4]))

    def _index(self, segment: Segment, last_offset: int, position: int) -> None:
        assert segment.offsets is not None and segment.times is not None
        segment.offsets.append(last_offset, position)
        segment.times.maybe_append(segment.newest_timestamp, segment.newest_offset)
        segment.since_index = 0
        self._limits.check_index_space(segment, self._settings)

    def _raise_refused(self, segment: Segment, error: OSError) -> NoReturn:
        # A partial batch must not stay past the log end: the next batch may be shorter, and the tail would stay behind it.
        self._writable = None
        with contextlib.suppress(OSError):
            self._files.truncate(self._fd, segment.size)
        raise StorageError(
            f"{self._partition}: the disk refused an append ({error}); "
            "nothing was written; free space, or repair or replace the disk"
        ) from error

    def _make_writable(self, now_ms: int) -> Segment:
        """Returns the newest segment, once its indexes are in memory and its file is truncated to its end."""
        self.stop_write()
        segment = self._segments.newest
        try:
            fd = segment.cut_file()
            segment.load_indexes()
            segment.first_batch_timestamp()  # may read the file; `_limits.arm` needs it
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot append ({error}); free space, or repair or replace the disk"
            ) from error
        if segment.first_append_ms < 0:
            segment.first_append_ms = now_ms
        self._writable, self._fd = segment, fd
        self._limits.arm(segment, self._settings)
        return segment

    def _first_batch(self, segment: Segment, timestamp: int, now_ms: int) -> None:
        segment.first_timestamp = timestamp
        segment.first_append_ms = now_ms
        self._limits.arm(segment, self._settings)

    def _roll_for(self, size: int, now_ms: int) -> Segment:
        """Rolls, and returns a segment with room for a batch of `size` bytes."""
        if size > self._settings.segment_bytes:
            raise RecordBatchTooLarge(
                f"{self._partition}: a batch of {size} bytes fits no segment; segment.bytes is "
                f"{self._settings.segment_bytes}"
            )
        self.roll()
        return self._make_writable(now_ms)

    # --- rolling ------------------------------------------------------------------------------------------------------
    def roll(self) -> int:
        """Closes the newest segment unless it is empty; returns the base offset of the segment that is newest afterwards."""
        self.stop_write()
        newest = self._segments.newest
        if not newest.size:
            return newest.base
        segment = self._segments.make(self._end.offset)
        self.cut_tail()
        try:
            newest.load_indexes()
            newest.remove_offset_index()
            segment.create()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot begin a segment ({error}); free space, or repair or replace the disk"
            ) from error
        newest.close_indexes()
        self._durability.closed(newest)
        self._segments.add(segment)
        self._writable = None
        self.rolled = True
        return segment.base

    def stop_write(self) -> None:
        """Cancels a thread's write past the log end and truncates the written bytes. Waits for at most one piece of the write.
        StorageError if the disk refuses."""
        write, self._write = self._write, None
        if write is None:
            return
        try:
            # `_writable` is None: if this fails, the next append truncates the file.
            write.stop()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot cut {write.segment.path} ({error}); repair or replace the disk"
            ) from error

    def cut_tail(self) -> None:
        """Truncates bytes of a failed append past the end of the newest segment before it is closed. Recovery would take them
        for damage and drop the segments that follow. StorageError if the disk refuses."""
        newest = self._segments.newest
        if self._writable is not None or not newest.is_open:
            return  # no bytes past its end
        try:
            newest.cut_file()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot cut {newest.path} ({error}); repair or replace the disk"
            ) from error

    # --- changes of the log -------------------------------------------------------------------------------------------
    def reset_writable(self) -> None:
        """Makes the next append prepare the newest segment again, because the segment has changed or its indexes have left
        memory."""
        self._writable = None

    def reconfigure(self, settings: LogSettings) -> None:
        self._settings = settings
        if self._writable is not None:
            self._limits.arm(self._writable, settings)
