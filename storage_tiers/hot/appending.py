"""Appending to a hot log: as leader one batch at a time, as follower what was fetched; and rolling, which appending asks for.

The price of `append` is the price of the broker: one gathered write, an index entry every few kilobytes, plain numbers
otherwise. Whatever is rare (a roll, a first batch, a refused write) stands in a method of its own.

Invariants: `_writable` is the newest segment once its maps are in memory and nothing lies behind its end, else None; `_fd` and
`_limits` are that segment's. What a thread writes behind the log end is stopped before anything else changes the log.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NoReturn

from storage_tiers.clock import Clock
from storage_tiers.errors import CorruptRecord, RecordBatchTooLarge, StorageError
from storage_tiers.files import Files
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.durability import Durability
from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.rolling import RollLimits
from storage_tiers.hot.scan import Chunk, ScannedBatch, end_transaction, replay
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.segments import Segments
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records import batch_walk
from storage_tiers.records.batch import CONTROL_MASK, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader
from storage_tiers.types import NO_PRODUCER_ID, AbortedTransaction, TopicPartition

# What a leader assigns: base offset, batch length (as it was), leader epoch.
_assigned = struct.Struct(">qii").pack


class Appender:
    """Of one log, whose segments and end it moves on. `rolled` is True when a segment was closed since someone set it to
    False."""

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
        *,
        partition: TopicPartition,
        settings: LogSettings,
        files: Files,
        clock: Clock,
    ) -> None:
        self._segments = segments
        self._end = end
        self._durability = durability
        self._partition = partition
        self._settings = settings
        self._files = files
        self._clock = clock
        self._limits = RollLimits()
        self._writable: Segment | None = None
        self._fd = -1
        # What a thread writes behind the log end.
        self._write: BatchWrite | None = None
        self.rolled = False

    # --- as leader ----------------------------------------------------------------------------------------------------
    def append(self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> int:
        """Appends one validated batch as leader and returns the base offset it got.

        The caller's bytes are neither changed nor copied: offset and epoch go into a head of their own. StorageError
        leaves the log as it was, readable, and ready for the next attempt; RecordBatchTooLarge if it fits no segment.
        """
        base, size = self._end.offset, header.size
        segment = self._writable or self._make_writable(now_ms)
        if self._limits.passed_by(segment.size + size, base + header.last_offset_delta, header.max_timestamp, now_ms):
            segment = self._roll_for(size, now_ms)
        try:
            self._files.pwrite(
                self._fd, (_assigned(base, size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:]), segment.size
            )
        except OSError as error:
            self._refused(segment, error)
        self._book(segment, batch, header, base, leader_epoch, now_ms)
        return base

    def _book(
        self, segment: Segment, batch: memoryview, header: BatchHeader, base: int, leader_epoch: int, now_ms: int
    ) -> None:
        """What was written at the end of `segment` is part of the log from now on."""
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
            self._note_producer(segment, batch, header, base, now_ms)

    def begin_write(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> BatchWrite:
        """Makes what a thread has to `run` before `finish_write`. Errors as for `append`.

        One at a time. An append, a roll or whatever else changes the log meanwhile stops it."""
        segment, last = self._writable or self._make_writable(now_ms), self._end.offset + header.last_offset_delta
        if self._limits.passed_by(segment.size + header.size, last, header.max_timestamp, now_ms):
            segment = self._roll_for(header.size, now_ms)
        write = BatchWrite(self._files, segment, batch)
        self._write, self._writable = write, None  # so that who appends meanwhile comes by `_make_writable`
        return write

    def is_writing(self, write: BatchWrite) -> bool:
        """Whether nothing has stopped it."""
        return self._write is write

    def finish_write(
        self, write: BatchWrite, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> int:
        """Makes a batch that a thread has written, and nothing has stopped, part of the log, and returns its base offset.
        StorageError if the disk refuses it."""
        base, segment = self._end.offset, write.segment
        self._write = None
        write.file.release()
        try:
            if write.error is not None:
                raise write.error
            head = (_assigned(base, header.size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:HEADER_BYTES])
            self._files.pwrite(self._fd, head, segment.size)
        except OSError as error:
            self._refused(segment, error)
        self._writable = segment
        self._limits.arm(segment, self._settings)
        self._book(segment, batch, header, base, leader_epoch, now_ms)
        return base

    def append_as_follower(self, batches: memoryview) -> int:
        """Appends whole batches that carry offsets and epochs already; returns the new log end.

        CorruptRecord if one is damaged, overlaps the log, or is of an older epoch than its predecessor: nothing is
        written then. A gap is legal. StorageError as for `append`; what was written before it stays.
        """
        found, stopped, stop = batch_walk.recover_scan(batches, 0, self._end.offset, self._end.epochs.latest)
        if stop != batch_walk.WHOLE:
            raise CorruptRecord(
                f"{self._partition}: fetched bytes are no continuation of offset {self._end.offset} at byte {stopped} "
                f"(walker stop {stop}); fetch again"
            )
        now_ms = self._clock.steady_ms()
        index = 0
        while index < len(found):
            index = self._append_group(batches, found, index, now_ms)
        return self._end.offset

    def _append_group(self, batches: memoryview, found: list[ScannedBatch], first: int, now_ms: int) -> int:
        """Writes as many batches from `first` on as one segment takes, at once; returns the next."""
        segment = self._writable or self._make_writable(now_ms)
        start, size, _, following, _, timestamp = found[first]
        if self._limits.passed_by(segment.size + size, following - 1, timestamp, now_ms) and segment.size:
            segment = self._roll_for(0, now_ms)
        position, stop, end = segment.size, first, start
        for at, length, _, following, _, timestamp in found[first:]:
            reached = position + (at - start) + length
            if stop > first and self._limits.passed_by(reached, following - 1, timestamp, now_ms):
                break
            stop, end = stop + 1, at + length
        try:
            self._files.pwrite(self._fd, (batches[start:end],), position)
        except OSError as error:
            self._refused(segment, error)
        group = found[first:stop]
        for at, length, base, following, epoch, timestamp in group:
            segment.note(position + at - start, length, following, timestamp)
            if epoch > self._end.epochs.latest:
                self._end.epochs.assign(epoch, base)
        segment.size = position + end - start
        self._end.offset = segment.end
        if position == 0:
            self._first_batch(segment, group[0][5], now_ms)
        self._limits.look_at_indexes(segment, self._settings)
        for ended in replay(Chunk(0, batches, group, batch_walk.WHOLE), self._end.producers, now_ms=now_ms):
            if ended.aborted:
                segment.add_aborted(AbortedTransaction(*ended[:4]))
        return stop

    def _note_producer(self, segment: Segment, batch: memoryview, header: BatchHeader, base: int, now_ms: int) -> None:
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
        self._limits.look_at_indexes(segment, self._settings)

    def _refused(self, segment: Segment, error: OSError) -> NoReturn:
        # What was written of the batch must not stay behind the log end, where a later batch might end before it.
        self._writable = None
        with contextlib.suppress(OSError):
            self._files.truncate(self._fd, segment.size)
        raise StorageError(
            f"{self._partition}: the disk refused an append ({error}); "
            "nothing was written, free space, or repair or replace the disk"
        ) from error

    def _make_writable(self, now_ms: int) -> Segment:
        """The newest segment with maps in memory and nothing behind its end."""
        self.stop_write()
        segment = self._segments.newest
        try:
            fd = segment.cut_file()
            segment.load_maps()
            segment.first_batch_timestamp()  # which the limits ask for, and may read
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
        """A newest segment with room for a batch of `size` bytes."""
        if size > self._settings.segment_bytes:
            raise RecordBatchTooLarge(
                f"{self._partition}: a batch of {size} bytes fits no segment; segment.bytes is "
                f"{self._settings.segment_bytes}"
            )
        self.roll()
        return self._make_writable(now_ms)

    # --- rolling ------------------------------------------------------------------------------------------------------
    def roll(self) -> int:
        """Closes the newest segment, unless it is empty, and returns the base offset of the newest one then."""
        self.stop_write()
        newest = self._segments.newest
        if not newest.size:
            return newest.base
        segment = self._segments.make(self._end.offset)
        self.cut_tail()
        try:
            newest.load_maps()
            newest.forget_index()
            segment.create()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot begin a segment ({error}); free space, or repair or replace the disk"
            ) from error
        newest.close_maps()
        self._durability.closed(newest, self._end.producers.snapshot())
        self._segments.add(segment)
        self._writable = None
        self.rolled = True
        return segment.base

    def stop_write(self) -> None:
        """Gives up what a thread writes behind the log end, and cuts it off. Waits for a piece of it at most. StorageError if
        the disk refuses."""
        write, self._write = self._write, None
        if write is None:
            return
        try:
            # `_writable` is None, so that the next append cuts it off should this fail.
            write.stop()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot cut {write.segment.path} ({error}); repair or replace the disk"
            ) from error

    def cut_tail(self) -> None:
        """Takes off what a refused append has left behind the end of the newest segment, before that is closed: recovery would
        take it for damage, and drop the segments that follow. StorageError if the disk refuses."""
        newest = self._segments.newest
        if self._writable is not None or not newest.is_open:
            return  # nobody has written behind its end
        try:
            newest.cut_file()
        except OSError as error:
            raise StorageError(
                f"{self._partition}: cannot cut {newest.path} ({error}); repair or replace the disk"
            ) from error

    # --- what the log tells it ----------------------------------------------------------------------------------------
    def begin_again(self) -> None:
        """The newest segment is another, or its maps have left memory: the next append looks anew."""
        self._writable = None

    def reconfigure(self, settings: LogSettings) -> None:
        self._settings = settings
        if self._writable is not None:
            self._limits.arm(self._writable, settings)
