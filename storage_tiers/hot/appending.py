"""Appending to a hot log: as leader one batch at a time, as follower what was fetched.

The price of `append` is the price of the broker: one gathered write, an index entry every few kilobytes, plain numbers
otherwise. Whatever is rare (a roll, a first batch, a refused write) stands in a method of its own.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import NoReturn

from storage_tiers.errors import CorruptRecord, RecordBatchTooLarge, StorageError
from storage_tiers.hot.indexes import MAX_RELATIVE_OFFSET
from storage_tiers.hot.log_state import LogState, Staged
from storage_tiers.hot.scan import Chunk, ScannedBatch, end_transaction, replay
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import UNBOUNDED, LogSettings
from storage_tiers.records import walker
from storage_tiers.records.batch import CONTROL_MASK, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader
from storage_tiers.types import NO_PRODUCER_ID, AbortedTransaction

# What a leader assigns: base offset, batch length (as it was), leader epoch.
_assigned = struct.Struct(">qii").pack


#: Of a batch that is staged, in one call.
STAGED_BYTES = 1 << 20


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
        timestamp = header.max_timestamp
        position = segment.size
        last = base + header.last_offset_delta
        if (
            position + size > self._roll_bytes
            or timestamp > self._roll_timestamp
            or now_ms > self._roll_clock
            or last - segment.base > MAX_RELATIVE_OFFSET
        ):
            segment = self._roll_for(size, now_ms)
            position = segment.size
        try:
            self._files.pwrite(
                self._fd, (_assigned(base, size - LENGTH_OVERHEAD, leader_epoch), batch[MAGIC:]), position
            )
        except OSError as error:
            self._refused(segment, error)
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
        return base

    def stage(self, batch: memoryview, header: BatchHeader, *, now_ms: int) -> bool:
        """Writes a piece of a large batch where `append_staged` will want it, behind the log end, where nobody looks. Its
        first 61 bytes stay zeros, so that recovery finds no batch there. Whether nothing is left to write.

        `append_staged` or `unstage` comes next; until then nothing else may be appended. Errors as for `append`.
        """
        segment = self._writable or self._make_writable(now_ms)
        # One that is empty is not rolled: that would begin the same place anew for ever.
        if header.size > self.settings.segment_bytes or (segment.size and self._rolls_before(segment, header, now_ms)):
            segment = self._roll_for(header.size, now_ms)
        staged = self._tally.staged
        at = HEADER_BYTES
        if staged is not None and staged[:2] == (segment, segment.size):  # else the log was rolled since
            at = staged.upto
        upto = min(at + STAGED_BYTES, header.size)
        self._tally.staged = Staged(segment, segment.size, upto)
        try:
            self._files.pwrite(self._fd, (batch[at:upto],), segment.size + at)
        except OSError as error:
            self._refused(segment, error)
        return upto == header.size

    def append_staged(self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> int:
        """As `append`, of a batch that was staged; one that does not stand where it is wanted is written whole."""
        segment, staged = self._writable, self._tally.staged
        if (
            segment is not None
            and staged == (segment, segment.size, header.size)
            and not self._rolls_before(segment, header, now_ms)
        ):
            batch = batch[:HEADER_BYTES]
        base = self.append(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)
        self._tally.staged = None
        return base

    def _rolls_before(self, segment: Segment, header: BatchHeader, now_ms: int) -> bool:
        return (
            segment.size + header.size > self._roll_bytes
            or header.max_timestamp > self._roll_timestamp
            or now_ms > self._roll_clock
            or self.end_offset + header.last_offset_delta - segment.base > MAX_RELATIVE_OFFSET
        )

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
        if (
            segment.size + size > self._roll_bytes
            or timestamp > self._roll_timestamp
            or now_ms > self._roll_clock
            or following - 1 - segment.base > MAX_RELATIVE_OFFSET
        ) and segment.size:
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
        segment = self._segments[-1]
        try:
            fd = segment.file().fd
            if os.fstat(fd).st_size != segment.size:
                self._files.truncate(fd, segment.size)
            segment.load_maps()
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
