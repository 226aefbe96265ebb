"""Appending to a hot log: as leader one batch at a time, as follower what was fetched.

The price of `append` is the price of the broker: one gathered write, an index entry every few kilobytes, plain numbers
otherwise. Whatever is rare (a roll, a first batch, a refused write) stands in a method of its own.
"""

from __future__ import annotations

import contextlib
import struct
from typing import NoReturn

from storage_tiers.errors import CorruptRecord, RecordBatchTooLarge, StorageError
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.indexes import MAX_RELATIVE_OFFSET
from storage_tiers.hot.log_state import LogState
from storage_tiers.hot.scan import Chunk, ScannedBatch, end_transaction, replay
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import UNBOUNDED, LogSettings
from storage_tiers.records import walker
from storage_tiers.records.batch import CONTROL_MASK, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader
from storage_tiers.types import NO_PRODUCER_ID, AbortedTransaction

# What a leader assigns: base offset, batch length (as it was), leader epoch.
_assigned = struct.Struct(">qii").pack


class AppendingLog(LogState):
    def append(self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> int:
        """Appends one validated batch as leader and returns the base offset it got.

        The caller's bytes are neither changed nor copied: offset and epoch go into a head of their own. StorageError
        leaves the log as it was, readable, and ready for the next attempt; RecordBatchTooLarge if it fits no segment.
        """
        base, size = self.end_offset, header.size
        segment = self._writable
        if segment is None:
            segment = self._make_writable(now_ms)
        # `_must_roll`, spelled out: nearly every record of a node comes by here.
        if (
            segment.size + size > self._roll_bytes
            or header.max_timestamp > self._roll_timestamp
            or now_ms > self._roll_clock
            or base + header.last_offset_delta - segment.base > MAX_RELATIVE_OFFSET
        ):
            segment = self._roll_for(size, now_ms)
        try:
            self._files.pwrite(
                self._fd, (_assigned(base, size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:]), segment.size
            )
        except OSError as error:
            self._refused(segment, error)
        self._book(segment, batch, header, leader_epoch, now_ms)
        return base

    def _book(self, segment: Segment, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> None:
        """What was written at the end of `segment` is part of the log from now on."""
        base, size, position, timestamp = self.end_offset, header.size, segment.size, header.max_timestamp
        last = base + header.last_offset_delta
        if timestamp > segment.newest_timestamp:
            segment.newest_timestamp = timestamp
            segment.newest_offset = last
        if segment.since_index > segment.interval:
            self._index(segment, last, position)
        segment.since_index += size
        segment.size = position + size
        segment.end = self.end_offset = last + 1
        if position == 0:
            self._first_batch(segment, timestamp, now_ms)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base)
        if header.producer_id != NO_PRODUCER_ID:
            self._note_producer(segment, batch, header, base, now_ms)

    def begin_write(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> BatchWrite:
        """Makes what a thread has to `run` before `finish_write`. Errors as for `append`.

        One at a time. An append, a roll or whatever else changes the log meanwhile stops it."""
        segment = self._writable or self._make_writable(now_ms)
        last = self.end_offset + header.last_offset_delta
        if self._must_roll(segment, header.size, header.max_timestamp, last, now_ms):
            segment = self._roll_for(header.size, now_ms)
        write = BatchWrite(self._files, segment, batch)
        self._tally.write, self._writable = write, None  # so that who appends meanwhile comes by `_make_writable`
        return write

    def is_writing(self, write: BatchWrite) -> bool:
        """Whether nothing has stopped it."""
        return self._tally.write is write

    def finish_write(
        self, write: BatchWrite, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> int:
        """Makes a batch that a thread has written, and nothing has stopped, part of the log, and returns its base offset.
        StorageError if the disk refuses it."""
        base, segment = self.end_offset, write.segment
        self._tally.write = None
        write.file.release()
        try:
            if write.error is not None:
                raise write.error
            head = (_assigned(base, header.size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:HEADER_BYTES])
            self._files.pwrite(self._fd, head, segment.size)
        except OSError as error:
            self._refused(segment, error)
        self._writable = segment
        self._arm_roll(segment)
        self._book(segment, batch, header, leader_epoch, now_ms)
        return base

    def append_as_follower(self, batches: memoryview) -> int:
        """Appends whole batches that carry offsets and epochs already; returns the new log end.

        CorruptRecord if one is damaged, overlaps the log, or is of an older epoch than its predecessor: nothing is
        written then. A gap is legal. StorageError as for `append`; what was written before it stays.
        """
        found, stopped, stop = walker.recover_scan(batches, 0, self.end_offset, self.epochs.latest)
        if stop != walker.WHOLE:
            raise CorruptRecord(
                f"{self.partition}: fetched bytes are no continuation of offset {self.end_offset} at byte {stopped} "
                f"(walker stop {stop}); fetch again"
            )
        now_ms = self._clock.steady_ms()
        index = 0
        while index < len(found):
            index = self._append_group(batches, found, index, now_ms)
        return self.end_offset

    def _append_group(self, batches: memoryview, found: list[ScannedBatch], first: int, now_ms: int) -> int:
        """Writes as many batches from `first` on as one segment takes, at once; returns the next."""
        segment = self._writable or self._make_writable(now_ms)
        start, size, _, following, _, timestamp = found[first]
        if segment.size and self._must_roll(segment, size, timestamp, following - 1, now_ms):
            segment = self._roll_for(0, now_ms)
        position, stop, end = segment.size, first, start
        for at, length, _, following, _, timestamp in found[first:]:
            fits = position + (at - start) + length <= self._roll_bytes and timestamp <= self._roll_timestamp
            if stop > first and not (fits and following - 1 - segment.base <= MAX_RELATIVE_OFFSET):
                break
            stop, end = stop + 1, at + length
        try:
            self._files.pwrite(self._fd, (batches[start:end],), position)
        except OSError as error:
            self._refused(segment, error)
        group = found[first:stop]
        for at, length, base, following, epoch, timestamp in group:
            segment.note(position + at - start, length, following, timestamp)
            if epoch > self.epochs.latest:
                self.epochs.assign(epoch, base)
        segment.size = position + end - start
        self.end_offset = segment.end
        if position == 0:
            self._first_batch(segment, group[0][5], now_ms)
        self._check_index_room(segment)
        for ended in replay(Chunk(0, batches, group, walker.WHOLE), self.producer_state, now_ms=now_ms):
            if ended.aborted:
                segment.add_aborted(AbortedTransaction(*ended[:4]))
        return stop

    def _note_producer(self, segment: Segment, batch: memoryview, header: BatchHeader, base: int, now_ms: int) -> None:
        if not header.attributes & CONTROL_MASK:
            self.producer_state.update(header, base, now_ms=now_ms)
            return
        ended = end_transaction(batch, base, self.producer_state, now_ms=now_ms)
        if ended is not None and ended.aborted:
            segment.add_aborted(AbortedTransaction(*ended[:4]))

    def _index(self, segment: Segment, last_offset: int, position: int) -> None:
        assert segment.offsets is not None and segment.times is not None
        segment.offsets.append(last_offset, position)
        segment.times.maybe_append(segment.newest_timestamp, segment.newest_offset)
        segment.since_index = 0
        self._check_index_room(segment)

    def _check_index_room(self, segment: Segment) -> None:
        assert segment.offsets is not None and segment.times is not None
        # One entry of each stays free for what closing adds.
        limit = self.settings.segment_index_bytes
        if (len(segment.offsets) + 1) * 8 > limit or (len(segment.times) + 2) * 12 > limit:
            self._roll_bytes = 0

    def _refused(self, segment: Segment, error: OSError) -> NoReturn:
        # What was written of the batch must not stay behind the log end, where a later batch might end before it.
        self._writable = None
        with contextlib.suppress(OSError):
            self._files.truncate(self._fd, segment.size)
        raise StorageError(
            f"{self.partition}: the disk refused an append ({error}); nothing was written, free space or mend it"
        ) from error

    def _make_writable(self, now_ms: int) -> Segment:
        """The newest segment with maps in memory and nothing behind its end."""
        self.stop_write()
        segment = self._segments[-1]
        try:
            fd = self._fit(segment)
            segment.load_maps()
            segment.first_batch_timestamp()  # which `_arm_roll` asks for, and may read
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot append ({error}); free space or mend the disk") from error
        if segment.first_append_ms < 0:
            segment.first_append_ms = now_ms
        self._writable, self._fd = segment, fd
        self._arm_roll(segment)
        return segment

    def _first_batch(self, segment: Segment, timestamp: int, now_ms: int) -> None:
        segment.first_timestamp = timestamp
        segment.first_append_ms = now_ms
        self._arm_roll(segment)

    def _arm_roll(self, segment: Segment) -> None:
        """What the next append compares with (Kafka: LogSegment.shouldRoll)."""
        settings = self.settings
        self._roll_bytes = settings.segment_bytes
        self._roll_timestamp = self._roll_clock = UNBOUNDED
        self._check_index_room(segment)
        if not segment.size:
            return
        after = settings.segment_ms - segment.jitter_ms
        first = segment.first_batch_timestamp()
        if first >= 0:
            self._roll_timestamp = first + after
        else:
            self._roll_clock = segment.first_append_ms + after

    def _must_roll(self, segment: Segment, size: int, timestamp: int, last: int, now_ms: int) -> bool:
        """Whether a batch of `size` bytes that ends with offset `last`, of this max timestamp, does not belong in it."""
        return (
            segment.size + size > self._roll_bytes
            or timestamp > self._roll_timestamp
            or now_ms > self._roll_clock
            or last - segment.base > MAX_RELATIVE_OFFSET
        )

    def _roll_for(self, size: int, now_ms: int) -> Segment:
        """A newest segment with room for a batch of `size` bytes."""
        if size > self.settings.segment_bytes:
            raise RecordBatchTooLarge(
                f"{self.partition}: a batch of {size} bytes fits no segment; segment.bytes is "
                f"{self.settings.segment_bytes}"
            )
        self.roll()
        return self._make_writable(now_ms)

    def reconfigure(self, settings: LogSettings) -> None:
        """Takes changed configs over; they bind from the next append on."""
        self.settings = settings
        self.producer_state.most = self._snapshots.most = settings.most_producers
        for segment in self._segments:
            segment.interval = settings.index_interval_bytes
        if self._writable is not None:
            self._arm_roll(self._writable)
