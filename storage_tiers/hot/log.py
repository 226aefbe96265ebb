"""One partition's log on local disk, in Kafka's own files.

Invariants: an offset is assigned once; batches are in offset order and never change; everything below `recovery_point` is
durable; readers hold counted descriptors, so their bytes survive an eviction or truncation. The newest segment takes
appends; all others are closed.

A log consists of `Segments`, the `LogEnd`, an `Appender`, a `LogReader`, `Durability` and `Swapping`, each with its own state
and invariant. This module holds the operations that change several of these parts: opening, closing, truncating, starting over
and evicting.

All calls for an open log run on the event loop; `open` and `close` may run in a thread. The objects that the log returns for a
flush, a swap or an eviction say which of their steps a thread may run. An append is durable only after a flush that began after
it. The log does not store its log start: the data directory's checkpoint has it.
"""

from __future__ import annotations

import contextlib
import os

from storage_tiers.errors import OffsetOutOfRange, StorageError
from storage_tiers.files import stage_file
from storage_tiers.hot import layout, leader_epochs, recovery, sync_failure
from storage_tiers.hot.append_counts import AppendCounts
from storage_tiers.hot.appending import Appender
from storage_tiers.hot.data_dir import establish_partition, remove_tree, rename_for_removal
from storage_tiers.hot.durability import Durability
from storage_tiers.hot.eviction import Eviction
from storage_tiers.hot.flush import FlushTargets
from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.reading import LogReader
from storage_tiers.hot.recovery import RecoveredLog
from storage_tiers.hot.segment import SegmentInfo
from storage_tiers.hot.segments import Segments, SegmentTotals
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.swapping import Swapping
from storage_tiers.types import EpochEntry, TimestampOffset


class HotLog:
    """Create it with `HotLog.open`. `appender` appends, `reader` reads, `end` holds epochs and producer state, `swapping` swaps
    segments for rewritten ones. `log_start_offset` hides the records below it and may be above or below the first segment's
    base; `raise_log_start` moves it. `cuts` has a sentence for each part that recovery removed."""

    __slots__ = (
        "_clock",
        "_counts",
        "_durability",
        "_rng",
        "_segments",
        "appender",
        "cuts",
        "directory",
        "end",
        "files",
        "log_start_offset",
        "partition",
        "reader",
        "settings",
        "swapping",
        "topic_id",
    )

    def __init__(self, ground: LogGround, settings: LogSettings, found: RecoveredLog, log_start_offset: int) -> None:
        self.directory = ground.directory
        self.partition = ground.partition
        self.topic_id = ground.topic_id
        self.settings = settings
        self.cuts = tuple(found.cuts)
        self.log_start_offset = log_start_offset
        self.files = ground.files
        self._clock = ground.clock
        self._rng = ground.rng
        segments = self._segments = Segments(found.segments, ground, settings)
        end = self.end = LogEnd(segments.newest.end if found.segments else 0, found.epochs, found.state)
        end.epochs.truncate_from_start(log_start_offset)
        self._durability = Durability(
            segments,
            end,
            found.snapshots,
            ground,
            recovery_point=found.trusted_end,
            stored_epochs=found.stored_epochs,
        )
        self.appender = Appender(segments, end, self._durability, ground, settings)
        self.reader = LogReader(ground.partition, segments, end, found.snapshots, ground.clock)
        self._counts = AppendCounts(segments, end)
        self.swapping = Swapping(segments, self._durability, self._counts, ground)

    # --- opening and closing ------------------------------------------------------------------------------------------
    @classmethod
    def open(
        cls, ground: LogGround, settings: LogSettings, *, recovery_point: int, log_start_offset: int, clean: bool
    ) -> HotLog:
        """Opens the log, durably creating it if there is none; recovers it unless the last stop was `clean`.

        An impossible `log_start_offset` counts as unknown and becomes 0 (`recovery.possible_log_start`). StorageError if a
        disk operation fails, InconsistentTopicId if the directory belongs to another topic."""
        files, directory = ground.files, ground.directory
        try:
            establish_partition(files, directory, ground.partition, ground.topic_id, log_start_offset)
        except OSError as error:
            raise StorageError(
                f"cannot open {directory} ({error}); free space, or repair or replace the disk"
            ) from error
        noted = sync_failure.read(directory)
        if noted is not None:
            clean, recovery_point = False, min(recovery_point, noted.durable)
            if noted.boot_id == sync_failure.boot_id():
                sync_failure.rewrite(files, directory, noted.durable)
        found = recovery.load(
            files,
            directory,
            settings=settings,
            clean=clean,
            recovery_point=recovery_point,
            now_ms=ground.clock.steady_ms(),
        )
        log_start_offset = recovery.possible_log_start(found, log_start_offset, recovery_point, clean=clean)
        self = cls(ground, settings, found, log_start_offset)
        if noted is not None:
            sync_failure.forget(files, directory)
        if not found.segments or self.end.offset < log_start_offset:
            # Records below log start must stay hidden, and no offset below it may be assigned again.
            self.truncate_fully_and_start_at(log_start_offset, epochs=self.end.epochs.entries())
        self._counts.set(0, 0)
        return self

    def close(self, *, clean: bool) -> None:
        """Releases all descriptors. `clean` first flushes and writes indexes and producer state, so that the next start does
        not read the log. StorageError if that fails; the stop was not clean then."""
        try:
            if clean:
                self.appender.stop_write()
                self.appender.cut_tail()
                self._settle_flush()
                self._sync(self._durability.gather(closing=True))
                if self._durability.pending:
                    raise StorageError(f"{self.partition}: the indexes could not be written; the next start recovers")
        finally:
            with contextlib.suppress(StorageError):  # recovery truncates it
                self.appender.stop_write()
            self._settle_flush()
            with contextlib.suppress(StorageError):  # the next start completes it
                self.swapping.end()
            self._segments.release_files()
            self.appender.reset_writable()

    def delete(self) -> None:
        """Removes the partition's directory. It is renamed first, so that a crash cannot leave half a log behind."""
        remove_tree(self.files, self.rename_away(layout.DELETE_SUFFIX))

    def rename_away(self, suffix: str) -> str:
        """Closes the log, renames its directory to `<topic>-<partition>.<token><suffix>` and returns the new path."""
        self.close(clean=False)
        return rename_for_removal(self.files, self._rng, self.directory, self.partition, suffix)

    def reconfigure(self, settings: LogSettings) -> None:
        """Applies changed configs from the next append on."""
        self.settings = settings
        self.end.producers.max_producers = self._durability.snapshots.max_producers = settings.max_producers
        self._segments.reconfigure(settings)
        self.appender.reconfigure(settings)

    # --- state --------------------------------------------------------------------------------------------------------
    @property
    def end_offset(self) -> int:
        return self.end.offset

    @property
    def local_start_offset(self) -> int:
        """Base offset of the first segment; log start may be above or below it."""
        return self._segments.all[0].base

    @property
    def active_start_offset(self) -> int:
        """Base offset of the newest segment, the one that takes appends."""
        return self._segments.newest.base

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def appended_records(self) -> int:
        """Offsets appended since this log was opened, including records that have been removed since."""
        return self._counts.records

    @property
    def appended_bytes(self) -> int:
        """Bytes appended since this log was opened, including records that have been removed since."""
        return self._counts.size

    @property
    def evicted_bytes(self) -> int:
        """Bytes of the segments that `evict_oldest` removed since this log was opened."""
        return self._segments.evicted_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    def totals_after(self, offset: int) -> SegmentTotals:
        """Totals of the segments that end above `offset`. Reads nothing from disk."""
        return self._segments.totals_after(offset)

    def segments(self) -> tuple[SegmentInfo, ...]:
        """All segments, oldest first. StorageError if one cannot be read."""
        return self._segments.infos()

    def oldest_segment(self) -> SegmentInfo:
        """The first of `segments`."""
        return self._segments.oldest_info()

    def durable_segments(self) -> list[SegmentInfo]:
        """The closed segments whose files are complete on disk, oldest first, without a hole. StorageError if one cannot be
        read."""
        found: list[SegmentInfo] = []
        for segment in self._segments.all[:-1]:
            if segment in self._durability.pending or segment.end > self._durability.recovery_point:
                break
            found.append(segment.info(active=False))
        return found

    def raise_log_start(self, offset: int) -> None:
        """Hides the records below `offset`; no effect unless it is above log start. OffsetOutOfRange beyond the log end."""
        if offset > self.end.offset:
            raise OffsetOutOfRange(f"{self.partition}: log start cannot pass the log end {self.end.offset} to {offset}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.end.epochs.truncate_from_start(offset)

    # --- appending ----------------------------------------------------------------------------------------------------
    def roll(self) -> int:
        """Closes the newest segment unless it is empty; returns the base offset of the segment that is newest afterwards."""
        return self.appender.roll()

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record by offset, from log start on, whose timestamp (ms) is at least `timestamp`."""
        return self.reader.offset_for_timestamp(timestamp, self.log_start_offset)

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp, the first one if several have it; None if no record has a timestamp."""
        return self.reader.max_timestamp(self.log_start_offset)

    # --- epochs -------------------------------------------------------------------------------------------------------
    def epoch_at(self, offset: int) -> int:
        return self.end.epochs.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(largest epoch <= `epoch`, its end offset), (-1, -1) if unknown (Kafka: OffsetForLeaderEpoch)."""
        return self.end.epochs.end_offset_for(epoch, self.end.offset)

    def begin_epoch(self, epoch: int) -> None:
        """Records that this node leads under `epoch` from the log end on. Call it before the first record of that epoch."""
        self.end.epochs.assign(epoch, self.end.offset)

    def replace_epochs(self, epochs: tuple[EpochEntry, ...]) -> None:
        """Replaces a history that is missing or truncated. The next flush of a closed segment or the next clean stop writes the
        new history to disk; a start before then rebuilds it."""
        self.end.epochs = LeaderEpochs(epochs)
        self.end.epochs.truncate_from_start(self.log_start_offset)

    # --- flushing -----------------------------------------------------------------------------------------------------
    @property
    def recovery_point(self) -> int:
        """All records below this offset are durable."""
        return self._durability.recovery_point

    @property
    def unflushed_records(self) -> int:
        return self.end.offset - self._durability.recovery_point

    @property
    def sync_failed(self) -> bool:
        """Whether an fsync has failed. Nothing more becomes durable until the log is reopened."""
        return self._durability.failure is not None

    @property
    def is_flushing(self) -> bool:
        """Whether a flush has started and not finished."""
        return self._durability.is_flushing

    def flush(self, upto: int | None = None) -> None:
        """Makes everything below `upto` (default: the log end) durable, synchronously. StorageError if the disk fails."""
        if upto is None or upto > self._durability.recovery_point or self._durability.pending:
            self._sync(self.begin_flush())

    def begin_flush(self) -> FlushTargets:
        """Prepares a flush of everything appended so far. Call its `sync` in a thread, then `finish_flush`.

        StorageError once an fsync has failed: a later success does not make up for it."""
        self._settle_flush()
        return self._durability.gather(closing=False)

    def finish_flush(self, targets: FlushTargets) -> int:
        """Applies the results of a synced flush and returns the recovery point. A truncation in between voids the flush."""
        if self._durability.is_current(targets):
            self._settle_flush()
        return self._durability.recovery_point

    def _sync(self, targets: FlushTargets) -> None:
        try:
            self._durability.sync(targets)
        finally:
            self._settle_flush()

    def _settle_flush(self) -> None:
        if self._durability.end_flush():
            self.appender.reset_writable()

    # --- truncating and evicting --------------------------------------------------------------------------------------
    def truncate_to(self, offset: int) -> None:
        """Removes the batches that end above `offset`, and an epoch at the end without records. Offsets may be assigned again
        only under a higher epoch, or by the leader that this log copies: if power fails before the next flush, recovery tells
        old bytes from new ones by the epoch."""
        segments, end = self._segments, self.end
        if offset >= end.offset:
            # As in Kafka: an epoch that this node began, but in which it wrote nothing, would contradict the next leader's.
            end.epochs.truncate_from_end(end.offset)
            return
        if offset <= segments.all[0].base:
            self.truncate_fully_and_start_at(
                offset,
                epochs=end.epochs.below(offset),
                producer_state=self._state_below(offset),
                log_start_offset=self.log_start_offset,
            )
            return
        self.appender.stop_write()
        self._settle_flush()
        self.swapping.end()
        appended = self._counts.current
        index = segments.index_of(offset)
        newest = segments.all[index]
        try:
            cut = newest.find(offset)
            newest.remove_offset_index()
            for segment in segments.all[index + 1 :]:
                segment.release_file()
                recovery.remove_files(self.files, segment)
            if cut is not None:
                newest.truncate(cut)
                fd = newest.file().fd
                self.files.truncate(fd, cut.position)
                # Otherwise the old batches may reappear behind a torn new header, whose epoch no CRC covers.
                self.files.fsync(fd)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot truncate ({error}); repair or replace the disk") from error
        segments.cut_after(newest)
        self.appender.reset_writable()
        end.offset = newest.end
        end.epochs.truncate_from_end(newest.end)
        end.producers = self.reader.producers_at(newest.end)
        self._counts.set(*appended)
        try:
            self._durability.cut(newest)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot truncate ({error}); repair or replace the disk") from error

    def _state_below(self, offset: int) -> bytes:
        return self.reader.state_at(offset) if offset == self._segments.all[0].base else ProducerStateManager().state()

    def truncate_fully_and_start_at(
        self,
        offset: int,
        *,
        epochs: tuple[EpochEntry, ...] = (),
        producer_state: bytes | None = None,
        log_start_offset: int | None = None,
    ) -> None:
        """Discards everything and starts at `offset` with the given epoch history and producer state.

        Log start rises to `offset`, or to `log_start_offset` where another tier holds the records in between. A power loss at
        any point leaves a contiguous part of the old log, or an empty log at log start. StorageError if a disk operation fails,
        CorruptRecord if the producer state is damaged or of a later offset.
        """
        state = self.end.producers.state() if producer_state is None else producer_state
        max_producers, now_ms = self.settings.max_producers, self._clock.steady_ms()
        restored = ProducerStateManager.restore(state, now_ms=now_ms, max_producers=max_producers)
        restored.check_below(offset)
        with contextlib.suppress(StorageError):  # the file is removed anyway
            self.appender.stop_write()
        self._settle_flush()
        self.swapping.end()
        appended = self._counts.current
        try:
            self._discard()
            for path, content in (
                (os.path.join(self.directory, layout.EPOCHS), leader_epochs.encode(epochs)),
                *self._durability.snapshots.files(offset, state),
            ):
                self.files.rename(stage_file(self.files, path, content), path)
            # The old names must be gone and the new state durable before the new log's name appears.
            self.files.fsync_dir(self.directory)
            segment = self._segments.make(offset)
            segment.create()
        except OSError as error:
            self._reset_to_empty()
            self._counts.set(*appended)
            raise StorageError(
                f"{self.partition}: cannot start over ({error}); free space, or repair or replace the disk"
            ) from error
        self._segments.begin_with(segment)
        self.end.set(offset, LeaderEpochs(epochs), restored)
        self._durability.started_over(offset, tuple(epochs))
        self._counts.set(*appended)
        self.log_start_offset = max(self.log_start_offset, offset if log_start_offset is None else log_start_offset)

    def _discard(self) -> None:
        """Removes all segments, beginning with the index names that make recovery trust them. Recovery truncates an untrusted
        log at its first hole; a hole in a trusted log would go unnoticed."""
        segments = self._segments.all
        for segment in segments:
            with contextlib.suppress(FileNotFoundError):
                self.files.unlink(segment.stem + layout.OFFSET_INDEX)
        self.files.fsync_dir(self.directory)
        for segment in segments:
            segment.release_file()
            recovery.remove_files(self.files, segment)
        self._durability.discarded()
        self._segments.clear()
        self.appender.reset_writable()

    def _reset_to_empty(self) -> None:
        """Presents an empty log at log start without a file, because the old log is gone and a new one could not be created."""
        if not self._segments.all:
            segment = self._segments.make(self.log_start_offset)
            segment.start_indexes()
            self._segments.begin_with(segment)
            self.end.set(segment.base, LeaderEpochs(), ProducerStateManager(self.settings.max_producers))
            self._durability.recovery_point = segment.base

    def evict_oldest(self, offset: int) -> Eviction | None:
        """Removes the oldest segment from the log if it is closed and ends at or below `offset`. Returns None
        otherwise, and while segments are swapped.

        The caller first needs a durable manifest that references the segment (I3), or a durable log start above it. The caller
        completes all steps of the returned eviction before the next call. StorageError if a disk operation fails."""
        segments = self._segments
        oldest = segments.all[0]
        if len(segments.all) == 1 or oldest.end > offset or self.swapping.is_under_way:
            return None
        if oldest in self._durability.pending:
            self.flush()
        doomed = oldest.path + layout.DELETED
        try:
            self.files.rename(oldest.path, doomed)
            segments.drop_oldest()
            self._durability.evicted(oldest)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot evict ({error}); repair or replace the disk") from error
        return Eviction(self.files, oldest, doomed, self._durability.snapshots)
