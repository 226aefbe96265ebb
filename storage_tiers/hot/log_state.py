"""The parts of a hot log that appending, reading and maintenance share: its segments, rolling, and flushing.

Invariants: `_segments` is never empty once the log is open, tiles, and its last one is the only one that grows;
`_pending` are the closed ones whose maps are still in memory alone. See `log` for the whole.
"""

from __future__ import annotations

import contextlib
import os
from operator import attrgetter
from typing import NamedTuple

from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import OffsetOutOfRange, StorageError
from storage_tiers.files import Files
from storage_tiers.hot import layout, leader_epochs
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.flush import FlushTargets
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.segment import Segment, SegmentInfo
from storage_tiers.hot.settings import UNBOUNDED, LogSettings
from storage_tiers.hot.snapshots import Snapshots
from storage_tiers.types import EpochEntry, SharedFile, TopicId, TopicPartition

#: Closed segments whose descriptors are kept for the next reader.
OPEN_CLOSED_SEGMENTS = 4

base_of = attrgetter("base")


class Beyond(NamedTuple):
    """Bytes and number of some segments, and of the closed ones among them; when the oldest was begun (Unix ms, -1 for
    none)."""

    size: int
    segments: int
    closed_size: int
    closed_segments: int
    since_ms: int


NOTHING_BEYOND = Beyond(0, 0, 0, 0, -1)


class Tally:
    """What a log counts of itself, apart from it: with more than 30 attributes CPython would give each log a dictionary of
    its own, and every append would find its attributes more slowly."""

    __slots__ = ("evicted_bytes", "opened_bytes", "opened_end", "write")

    def __init__(self) -> None:
        self.evicted_bytes = self.opened_bytes = self.opened_end = 0
        #: What a thread writes behind the log end.
        self.write: BatchWrite | None = None


class LogState:
    def __init__(
        self,
        directory: str,
        partition: TopicPartition,
        topic_id: TopicId,
        settings: LogSettings,
        files: Files,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self.directory = directory
        self.partition = partition
        self.topic_id = topic_id
        self.settings = settings
        #: A segment was closed since someone last set this to False.
        self.rolled = False
        self.end_offset = 0
        self.recovery_point = 0
        self.epochs = leader_epochs.LeaderEpochs()
        self.producer_state = ProducerStateManager()
        #: What recovery took off, in sentences.
        self.cuts: tuple[str, ...] = ()
        self._files = files
        self._clock = clock
        self._rng = rng
        self._log_start = 0
        self._segments: list[Segment] = []
        self._closed_bytes = 0
        self._tally = Tally()
        # Closed, with maps still in memory: a flush writes them.
        self._pending: list[Segment] = []
        self._recently_read: list[Segment] = []
        self._stored_epochs: tuple[EpochEntry, ...] = ()
        self._snapshots = Snapshots(files, directory, ())
        # Segment files whose names are not known to be durable.
        self._names_dirty = False
        self._flushing: FlushTargets | None = None
        # Of an fsync: final, as a second one that succeeds proves nothing.
        self._sync_failure: OSError | None = None
        # The newest segment once its maps are loaded and its tail is sound; its descriptor, and what makes it roll.
        self._writable: Segment | None = None
        self._fd = -1
        self._roll_bytes = 0
        self._roll_timestamp = UNBOUNDED
        self._roll_clock = UNBOUNDED

    # --- what there is ------------------------------------------------------------------------------------------------
    @property
    def log_start_offset(self) -> int:
        return self._log_start

    @property
    def local_start_offset(self) -> int:
        """Base offset of the first segment; log start may lie above or below it."""
        return self._segments[0].base

    @property
    def active_start_offset(self) -> int:
        """Base offset of the newest segment, the one that takes appends."""
        return self._segments[-1].base

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self._segments[-1].size

    @property
    def appended_records(self) -> int:
        """Since this log was opened, as offsets: what was appended and is gone again counts."""
        return self.end_offset - self._tally.opened_end

    @property
    def appended_bytes(self) -> int:
        """Since this log was opened. Nothing is counted for it where records are appended."""
        return self.size_bytes + self._tally.evicted_bytes - self._tally.opened_bytes

    @property
    def evicted_bytes(self) -> int:
        """Of segments that left the log by `evict_oldest` since it was opened."""
        return self._tally.evicted_bytes

    def _has_appended(self, records: int, size: int) -> None:
        """What `appended_records` and `appended_bytes` say now, and go on from."""
        self._tally.opened_end = self.end_offset - records
        self._tally.opened_bytes = self.size_bytes + self._tally.evicted_bytes - size

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def beyond(self, offset: int) -> Beyond:
        """What the segments hold that do not end at or below `offset`. Reads nothing from disk."""
        newest = self._segments[-1]
        if newest.end <= offset:
            return NOTHING_BEYOND
        rest = [segment for segment in self._segments if segment.end > offset and segment.size]
        size = sum(segment.size for segment in rest)
        active = newest.size
        oldest = min((segment.first_append_ms for segment in rest), default=-1)
        return Beyond(size, len(rest), size - active, len(rest) - (active > 0), oldest)

    @property
    def sync_failed(self) -> bool:
        """Whether an fsync has failed: nothing is durable any more before the log was opened anew."""
        return self._sync_failure is not None

    @property
    def unflushed_records(self) -> int:
        return self.end_offset - self.recovery_point

    def segments(self) -> tuple[SegmentInfo, ...]:
        """All, oldest first. StorageError if one cannot be read."""
        newest = self._segments[-1]
        try:
            return tuple(segment.info(active=segment is newest) for segment in self._segments)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot read its segments ({error}); mend the disk") from error

    def oldest_segment(self) -> SegmentInfo:
        """The first of `segments`."""
        oldest = self._segments[0]
        try:
            return oldest.info(active=oldest is self._segments[-1])
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot read its segments ({error}); mend the disk") from error

    def epoch_at(self, offset: int) -> int:
        return self.epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset), (-1, -1) if unknown (Kafka: OffsetForLeaderEpoch)."""
        return self.epochs.end_offset_for(epoch, self.end_offset)

    def begin_epoch(self, epoch: int) -> None:
        """This node leads from the log end on: `epoch` is known, and its end is the log end, before its first record."""
        self.epochs.assign(epoch, self.end_offset)

    def raise_log_start(self, offset: int) -> None:
        """Hides the records below `offset`; nothing if it is not above log start. OffsetOutOfRange beyond the log end."""
        if offset > self.end_offset:
            raise OffsetOutOfRange(f"{self.partition}: log start cannot pass the log end {self.end_offset} to {offset}")
        if offset > self._log_start:
            self._log_start = offset
            self.epochs.truncate_from_start(offset)

    # --- segments -----------------------------------------------------------------------------------------------------
    def _segment(self, base: int) -> Segment:
        segment = Segment(self._files, self.directory, base, interval=self.settings.index_interval_bytes)
        segment.jitter_ms = self._jitter()
        return segment

    def _jitter(self) -> int:
        bound = min(self.settings.segment_jitter_ms, self.settings.segment_ms)
        return int(self._rng.uniform(0, bound)) if bound > 0 else 0

    def roll(self) -> int:
        """Closes the newest segment, unless it is empty, and returns the base offset of the newest one then."""
        self.stop_write()
        newest = self._segments[-1]
        if not newest.size:
            return newest.base
        segment = self._segment(self.end_offset)
        self._cut_tail()
        try:
            newest.load_maps()
            self._forget_index(newest)
            segment.create()
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot begin a segment ({error}); free space or mend it") from error
        newest.close_maps()
        self._snapshots.pending[segment.base] = self.producer_state.snapshot()
        self._segments.append(segment)
        self._pending.append(newest)
        self._closed_bytes += newest.size
        self._remember_read(newest)
        self._writable = None
        self._names_dirty = self.rolled = True
        return segment.base

    def stop_write(self) -> None:
        """Gives up what a thread writes behind the log end, and cuts it off. Waits for a piece of it at most. StorageError if
        the disk refuses."""
        write, self._tally.write = self._tally.write, None
        if write is None:
            return
        try:
            # `_writable` is None, so that the next append cuts it off should this fail.
            write.stop()
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot cut {write.segment.path} ({error}); mend the disk") from error

    def _cut_tail(self) -> None:
        """Takes off what a refused append has left behind the end of the newest segment, before that is closed: recovery would
        take it for damage, and drop the segments that follow. StorageError if the disk refuses."""
        newest = self._segments[-1]
        if self._writable is not None or not newest.is_open:
            return  # nobody has written behind its end
        try:
            self._fit(newest)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot cut {newest.path} ({error}); mend the disk") from error

    def _fit(self, segment: Segment) -> int:
        """Its file ends where the segment does; returns the descriptor. OSError or StorageError if the disk refuses."""
        fd = segment.file().fd
        if os.fstat(fd).st_size != segment.size:
            self._files.truncate(fd, segment.size)
        return fd

    def _forget_index(self, segment: Segment) -> None:
        """A clean stop gave the newest segment a `.index`. Once the segment grows or shrinks, that name would make a
        crash trust it, so it goes, durably, before anything can follow the segment or take its bytes' place."""
        if segment.index_on_disk:
            segment.load_maps()
            with contextlib.suppress(FileNotFoundError):  # an earlier attempt ended before the directory was synced
                self._files.unlink(segment.stem + layout.OFFSET_INDEX)
            self._files.fsync_dir(self.directory)
            segment.index_on_disk = False

    def _remember_read(self, segment: Segment) -> None:
        recent = self._recently_read
        if segment in recent:
            recent.remove(segment)
        recent.append(segment)
        if len(recent) > OPEN_CLOSED_SEGMENTS:
            recent.pop(0).release_file()

    # --- flushing -----------------------------------------------------------------------------------------------------
    def flush(self, upto: int | None = None) -> None:
        """Makes everything below `upto` (default: the log end) durable, here and now. StorageError if the disk fails."""
        if upto is None or upto > self.recovery_point or self._pending:
            self._settle_flush()
            self._sync(self._gather(closing=False))

    def begin_flush(self) -> FlushTargets:
        """Gathers what makes all that was appended so far durable; call its `sync` in a thread, then `finish_flush`.

        StorageError once an fsync has failed: no later one may stand for it."""
        self._settle_flush()
        return self._gather(closing=False)

    def finish_flush(self, targets: FlushTargets) -> int:
        """Takes a synced flush's results over and returns the recovery point. A truncation meanwhile made it void."""
        if targets is self._flushing:
            self._settle_flush()
        return self.recovery_point

    def _gather(self, *, closing: bool) -> FlushTargets:
        if self._sync_failure is not None:
            raise self._not_synced(self._sync_failure)
        newest = self._segments[-1]
        logs: list[SharedFile] = [segment.file().acquire() for segment in self._pending]
        if self.end_offset > self.recovery_point and newest.size:
            logs.append(newest.file().acquire())
        if closing and newest.size and not (newest.offsets is None and newest.index_on_disk):
            newest.load_maps()
            newest.close_maps()
            self._pending.append(newest)
            self._snapshots.pending[self.end_offset] = self.producer_state.snapshot()
        writes = closing or bool(self._pending)
        epochs = self.epochs.below(self.end_offset) if writes else self._stored_epochs
        small = [(self._snapshots.path(offset), content) for offset, content in self._snapshots.pending.items()]
        if epochs != self._stored_epochs:
            small.append((os.path.join(self.directory, layout.EPOCHS), leader_epochs.encode(epochs)))
        self._flushing = FlushTargets(
            self._files,
            self.directory,
            durable=self.recovery_point,
            upto=self.end_offset,
            logs=logs,
            closed=tuple(self._pending),
            small=small if writes else (),
            names=self._names_dirty,
            newest_base=newest.base,
            epochs=epochs,
            snapshots=tuple(self._snapshots.pending) if writes else (),
        )
        return self._flushing

    def _sync(self, targets: FlushTargets) -> None:
        try:
            targets.sync()
        except OSError as error:
            if targets.failure is not None:
                raise self._not_synced(error) from error
            raise StorageError(f"{self.partition}: cannot flush now ({error}); it is tried again") from error
        finally:
            self._settle_flush()

    def _not_synced(self, error: OSError) -> StorageError:
        return StorageError(f"{self.partition}: fsync failed ({error}); mend the disk, then restart the node")

    def _settle_flush(self) -> None:
        """No flush is under way afterwards: one that was synced has its results taken over, any other is void."""
        targets = self._flushing
        if targets is None:
            return
        self._flushing = None
        with targets.lock:
            targets.cancelled = True
        targets.release()
        self._sync_failure = self._sync_failure or targets.failure
        if not targets.synced:
            return
        self.recovery_point = max(self.recovery_point, targets.upto)
        self._names_dirty = self._segments[-1].base > targets.newest_base
        if targets.maps_error is not None:
            return
        for segment in targets.closed:
            segment.drop_maps()
        self._pending = [segment for segment in self._pending if segment not in targets.closed]
        if targets.closed and self._segments[-1] is targets.closed[-1]:
            self._writable = None
        self._stored_epochs = targets.epochs
        for offset in targets.snapshots:
            self._snapshots.pending.pop(offset, None)
            self._snapshots.stored.add(offset)
