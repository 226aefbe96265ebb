"""One partition's log on local disk, in Kafka's own files.

Invariants: an offset is given once; batches lie in offset order and never change; below `recovery_point` all is
durable; readers hold counted descriptors, so that whatever is evicted or truncated meanwhile, their bytes stay. The
newest segment takes appends; all others are closed.

Everything runs on the event loop, but `FlushTargets.sync`. Not promised: durability of an append before a flush that
began after it, nor that log start is remembered (the data directory's checkpoint does that).
"""

from __future__ import annotations

import bisect
import contextlib
import os
from typing import NamedTuple

from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import InconsistentTopicId, OffsetOutOfRange, StorageError
from storage_tiers.files import Files, stage_file
from storage_tiers.hot import layout, leader_epochs, recovery, sync_failure
from storage_tiers.hot.appending import AppendingLog
from storage_tiers.hot.data_dir import read_topic_id, remove_tree, retire_directory, write_topic_id
from storage_tiers.hot.epoch_scan import EpochScan
from storage_tiers.hot.eviction import Eviction
from storage_tiers.hot.log_state import base_of
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import HEADER_BYTES, read_header
from storage_tiers.types import (
    AbortedTransaction,
    EpochEntry,
    FileSlice,
    TimestampOffset,
    TopicId,
    TopicPartition,
)


class UploadSource(NamedTuple):
    """Whole batches of one segment: bytes [position, position + length) of `path` hold [base_offset, end_offset)."""

    path: str
    position: int
    length: int
    base_offset: int
    end_offset: int


class HotLog(AppendingLog):
    """See the module. Made by `HotLog.open` only."""

    # --- opening and closing ------------------------------------------------------------------------------------------
    @classmethod
    def open(
        cls,
        directory: str,
        *,
        partition: TopicPartition,
        topic_id: TopicId,
        settings: LogSettings,
        files: Files,
        clock: Clock,
        rng: Rng,
        recovery_point: int,
        log_start_offset: int,
        clean: bool,
    ) -> HotLog:
        """Opens the log, durably creating it if there is none; recovers it unless the last stop was `clean`.

        StorageError if the disk refuses, InconsistentTopicId if the directory is another topic's.
        """
        self = cls(directory, partition, topic_id, settings, files, clock, rng)
        try:
            self._establish(log_start_offset)
        except OSError as error:
            raise StorageError(f"cannot open {directory} ({error}); free space or mend the disk") from error
        self._log_start = log_start_offset
        noted = sync_failure.read(directory)
        if noted is not None:
            clean, recovery_point = False, min(recovery_point, noted.durable)
            if noted.boot_id == sync_failure.boot_id():
                sync_failure.rewrite(files, directory, noted.durable)
        self._load(clean, recovery_point)
        if noted is not None:
            sync_failure.forget(files, directory)
        if not self._segments or self.end_offset < log_start_offset:
            # Nothing below log start may be seen again, and no offset below it given anew.
            self.truncate_fully_and_start_at(log_start_offset, epochs=self.epochs.entries())
        self._has_appended(0, 0)
        return self

    def _establish(self, base: int) -> None:
        """Makes the directory durably this partition's, unless it is. `partition.metadata` comes last of what is in it."""
        found = read_topic_id(self.directory)
        if found == self.topic_id:
            return
        if found is not None:
            raise InconsistentTopicId(
                f"{self.directory} belongs to topic id {found}, {self.partition} has {self.topic_id}; move it away"
            )
        files, directory = self._files, self.directory
        files.mkdir(directory)
        if not any(name.endswith(layout.LOG) for name in os.listdir(directory)):
            segment = self._segment(base)
            segment.create()
            segment.release_file()
        write_topic_id(files, directory, self.topic_id)
        files.fsync_dir(os.path.dirname(directory))

    def _load(self, clean: bool, recovery_point: int) -> None:
        now_ms = self._clock.steady_ms()
        loaded = recovery.load(
            self._files,
            self.directory,
            settings=self.settings,
            clean=clean,
            recovery_point=recovery_point,
            now_ms=now_ms,
        )
        self._segments = loaded.segments
        self.epochs, self._stored_epochs = loaded.epochs, loaded.stored_epochs
        self.producer_state = loaded.state
        self._snapshots = loaded.snapshots
        self.cuts = tuple(loaded.cuts)
        if loaded.segments:
            self.end_offset = loaded.segments[-1].end
            self._pending = [segment for segment in loaded.segments[:-1] if segment.offsets is not None]
            self._closed_bytes = sum(segment.size for segment in loaded.segments[:-1])
            loaded.segments[-1].jitter_ms = self._jitter()
        self.recovery_point = loaded.trusted_end
        self.epochs.truncate_from_start(self._log_start)

    def close(self, *, clean: bool) -> None:
        """Gives up all descriptors. `clean` flushes first and writes maps and producer state, so that the next start
        need not read the log: StorageError if that fails, and then the stop was not clean."""
        try:
            if clean:
                self.stop_write()
                self._cut_tail()
                self._settle_flush()
                self._sync(self._gather(closing=True))
                if self._pending:
                    raise StorageError(f"{self.partition}: the indexes could not be written; the next start recovers")
        finally:
            with contextlib.suppress(StorageError):  # recovery cuts it off
                self.stop_write()
            self._settle_flush()
            for segment in self._segments:
                segment.release_file()
            self._writable = None

    def delete(self) -> None:
        """Removes the partition's directory: renamed first, so that a crash cannot leave half a log behind."""
        remove_tree(self._files, self.retire(layout.DELETE_SUFFIX))

    def retire(self, suffix: str) -> str:
        """Renames the directory to `<topic>-<partition>.<token><suffix>` and returns its new path; the log is closed."""
        self.close(clean=False)
        return retire_directory(self._files, self._rng, self.directory, self.partition, suffix)

    # --- reading ------------------------------------------------------------------------------------------------------
    def read(
        self, offset: int, *, max_bytes: int, upto_offset: int, min_one: bool = True, over_gaps: bool = True
    ) -> list[FileSlice]:
        """Bytes of one segment from the batch that holds `offset` on, ending before the batch that reaches `upto_offset`.

        At most `max_bytes`, so the last batch may be cut short, but never the first: with `min_one` that one may exceed
        the limit, without it there is none. None at the end. The caller releases the slice's file. OffsetOutOfRange
        outside [local start, log end]. A closed segment that ends before `offset` is a gap, as compaction leaves them, or
        damage: the next one is read, or without `over_gaps` StorageError raised.
        """
        segments = self._segments
        if not segments[0].base <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"{self.partition}: offset {offset} is outside of [{segments[0].base}, {self.end_offset}]; "
                "ask ListOffsets where the log begins"
            )
        index = bisect.bisect_right(segments, offset, key=base_of) - 1
        while index < len(segments):
            segment = segments[index]
            span = segment.find(offset)
            if span is not None:
                break
            if not over_gaps and segment is not segments[-1]:
                raise StorageError(f"{segment.path} ends before offset {offset}; put the file back from a copy")
            index += 1
        else:
            return []
        end = segment.size
        if upto_offset < segment.end:
            bound = segment.find(upto_offset)
            end = bound.position if bound is not None else end
        length = min(end - span.position, max_bytes)
        if length < span.size:
            length = min(span.size, end - span.position) if min_one else 0  # the mere beginning of a batch is of no use
        if length <= 0:
            return []
        if segment is not segments[-1]:
            self._remember_read(segment)
        return [FileSlice(segment.file().acquire(), span.position, length)]

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record by offset, from log start on, whose timestamp (ms) is at least `timestamp`."""
        for segment in self._segments:
            if segment.end > self._log_start and segment.newest().timestamp >= timestamp:
                found = segment.first_at_or_after(timestamp, self._log_start)
                self._give_back(segment)
                if found is not None:
                    return found
        return None

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp, the first of them by offset; None if no record has one."""
        best: TimestampOffset | None = None
        for segment in self._segments:
            if segment.end > self._log_start and (best is None or segment.newest().timestamp > best.timestamp):
                newest = segment.newest_from(self._log_start)
                if newest.timestamp >= 0 and (best is None or newest.timestamp > best.timestamp):
                    best = segment.first_at_or_after(newest.timestamp, self._log_start) or best
                self._give_back(segment)
        return best

    def _give_back(self, segment: Segment) -> None:
        if segment is not self._segments[-1] and segment.is_open:
            self._remember_read(segment)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start, end), for readers of committed records (Kafka: collectAborted)."""
        found: list[AbortedTransaction] = []
        index = max(bisect.bisect_right(self._segments, start, key=base_of) - 1, 0)
        for segment in self._segments[index:]:
            for entry in segment.aborted():
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return found
        return found

    def state_at(self, offset: int) -> bytes:
        """The producer snapshot at exactly `offset` (a batch boundary in [local start, log end])."""
        if offset == self.end_offset:
            return self.producer_state.snapshot()
        return self._state_at(offset).snapshot()

    def snapshot_path(self, offset: int) -> str:
        """Where the producer snapshot at `offset` lies, if there is one (`snapshots.is_sound`)."""
        return self._snapshots.path(offset)

    def write_snapshot(self, offset: int) -> None:
        """Writes the producer snapshot at exactly `offset`, as `state_at` says it. StorageError if the disk refuses."""
        try:
            self._snapshots.write(offset, self.state_at(offset))
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot write a snapshot ({error}); free space or mend it") from error

    def _state_at(self, offset: int) -> ProducerStateManager:
        try:
            return self._snapshots.state_at(self._segments, offset, now_ms=self._clock.steady_ms())
        finally:
            for segment in self._segments[:-1]:
                self._give_back(segment)

    def upload_source(self, start: int, end_limit: int, *, include_active: bool = False) -> UploadSource | None:
        """The whole batches from the one that holds `start` on, in its segment, that end at or before `end_limit`.

        Of a closed segment, or the active one too if asked. None if there are none.
        """
        index = bisect.bisect_right(self._segments, start, key=base_of) - 1
        for segment in self._segments[max(index, 0) :]:
            if segment is self._segments[-1] and not include_active:
                return None
            span = segment.find(start)
            if span is None:
                continue
            end, end_offset = segment.size, segment.end
            if end_limit < segment.end:
                bound = segment.find(end_limit)
                if bound is not None:
                    end, end_offset = bound.position, bound.base_offset
            self._give_back(segment)
            if end <= span.position:
                return None
            return UploadSource(segment.path, span.position, end - span.position, span.base_offset, end_offset)
        return None

    # --- epochs -------------------------------------------------------------------------------------------------------
    def epoch_on_disk(self, offset: int) -> tuple[int, int] | None:
        """(base offset, leader epoch) of the first local batch that ends at or after `offset`, from its own header; None if
        there is none. StorageError if it cannot be read."""
        index = bisect.bisect_right(self._segments, offset, key=base_of) - 1
        for segment in self._segments[max(index, 0) :]:
            span = segment.find(offset)
            if span is None:
                continue
            try:
                header = read_header(os.pread(segment.file().fd, HEADER_BYTES, span.position))
            except OSError as error:
                raise StorageError(f"{segment.path} cannot be read ({error}); mend the disk") from error
            self._give_back(segment)
            return span.base_offset, header.leader_epoch
        return None

    def scan_epochs(self, offset: int) -> EpochScan:
        """What reads the epochs of the local batches that end at or after `offset`. StorageError if that cannot begin."""
        spans = []
        for segment in self._segments:
            span = segment.find(offset) if segment.size and segment.end > offset else None
            if span is not None:
                spans.append((segment.file().acquire(), span.position, segment.size))
                self._give_back(segment)
        return EpochScan(spans)

    def replace_epochs(self, epochs: tuple[EpochEntry, ...]) -> None:
        """Takes a history in the place of one that is missing or cut. It is on disk with the next flush of a closed segment,
        or the next clean stop: until then a start makes it anew."""
        self.epochs = leader_epochs.LeaderEpochs(epochs)
        self.epochs.truncate_from_start(self._log_start)

    # --- truncating and evicting --------------------------------------------------------------------------------------
    def truncate_to(self, offset: int) -> None:
        """Removes the batches that end above `offset`. The epoch under which offsets are given anew must be a higher one
        or a leader's, which is how recovery tells old bytes from new if power fails before the next flush."""
        if offset >= self.end_offset:
            return
        if offset <= self._segments[0].base:
            self.truncate_fully_and_start_at(
                offset,
                epochs=self.epochs.below(offset),
                producer_state=self._state_below(offset),
                log_start_offset=self._log_start,
            )
            return
        self.stop_write()
        self._settle_flush()
        appended = self.appended_records, self.appended_bytes
        index = bisect.bisect_right(self._segments, offset, key=base_of) - 1
        newest = self._segments[index]
        try:
            cut = newest.find(offset)
            self._forget_index(newest)
            for segment in self._segments[index + 1 :]:
                segment.release_file()
                recovery.remove_files(self._files, segment)
            if cut is not None:
                newest.truncate(cut)
                fd = newest.file().fd
                self._files.truncate(fd, cut.position)
                # Else the old batches may come back with a torn new head before them, whose epoch no CRC covers.
                self._files.fsync(fd)
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot truncate ({error}); mend the disk") from error
        del self._segments[index + 1 :]
        self._truncated(newest)
        self._has_appended(*appended)

    def _truncated(self, newest: Segment) -> None:
        self.end_offset = newest.end
        self.recovery_point = min(self.recovery_point, newest.end)
        self._writable = None
        self._pending = [segment for segment in self._pending if segment.base < newest.base]
        self._recently_read = [segment for segment in self._recently_read if segment.base < newest.base]
        self._closed_bytes = sum(segment.size for segment in self._segments[:-1])
        self.epochs.truncate_from_end(newest.end)
        self._snapshots.retain(0, newest.end)
        self.producer_state = self._state_at(newest.end)

    def _state_below(self, offset: int) -> bytes:
        return self.state_at(offset) if offset == self._segments[0].base else ProducerStateManager().snapshot()

    def truncate_fully_and_start_at(
        self,
        offset: int,
        *,
        epochs: tuple[EpochEntry, ...] = (),
        producer_state: bytes | None = None,
        log_start_offset: int | None = None,
    ) -> None:
        """Discards everything and begins at `offset` with a history of epochs and a producer snapshot from elsewhere.

        Log start rises to `offset`, or is `log_start_offset` where another tier holds what lies between.

        A power loss in between leaves some contiguous part of the old log, or an empty log at log start.
        """
        state = self.producer_state.snapshot() if producer_state is None else producer_state
        most, now_ms = self.settings.most_producers, self._clock.steady_ms()
        restored = ProducerStateManager.restore(state, now_ms=now_ms, most=most)
        with contextlib.suppress(StorageError):  # the file goes
            self.stop_write()
        self._settle_flush()
        appended = (self.appended_records, self.appended_bytes) if self._segments else (0, 0)
        try:
            self._discard()
            for path, content in (
                (os.path.join(self.directory, layout.EPOCHS), leader_epochs.encode(epochs)),
                (self._snapshots.path(offset), state),
            ):
                self._files.rename(stage_file(self._files, path, content), path)
            # The old names are gone and the new state is there before the name of the new log can be.
            self._files.fsync_dir(self.directory)
            segment = self._segment(offset)
            segment.create()
        except OSError as error:
            self._stand_empty()
            self._has_appended(*appended)
            raise StorageError(f"{self.partition}: cannot begin anew ({error}); free space or mend the disk") from error
        self._segments = [segment]
        self._snapshots.stored = {offset}
        self.epochs = leader_epochs.LeaderEpochs(epochs)
        self._stored_epochs = tuple(epochs)
        self.producer_state = restored
        self.end_offset = self.recovery_point = offset
        self._has_appended(*appended)
        self._log_start = max(self._log_start, offset if log_start_offset is None else log_start_offset)
        self._names_dirty = True
        self._sync_failure = None

    def _discard(self) -> None:
        """Removes all segments. First the names that make recovery trust them: what a power loss leaves of an untrusted
        log is cut at its first hole, of a trusted one it would not be."""
        for segment in self._segments:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(segment.stem + layout.OFFSET_INDEX)
        self._files.fsync_dir(self.directory)
        for segment in self._segments:
            segment.release_file()
            recovery.remove_files(self._files, segment)
        self._snapshots.retain(0, -1)
        self._segments, self._pending, self._recently_read = [], [], []
        self._writable, self._closed_bytes = None, 0

    def _stand_empty(self) -> None:
        """The old log is gone and no new one could be begun: until that succeeds, an empty log at log start, no file."""
        if not self._segments:
            segment = self._segment(self._log_start)
            segment.start_maps()
            self._segments = [segment]
            self.epochs = leader_epochs.LeaderEpochs()
            self.producer_state = ProducerStateManager(self.settings.most_producers)
            self.end_offset = self.recovery_point = self._log_start

    def evict_oldest(self, offset: int) -> Eviction | None:
        """Takes the oldest segment out of the log, if it is closed and ends at or below `offset`. Before: a durable manifest
        that holds it (I3), or a durable log start above it. Before the next: all steps of what is returned."""
        oldest = self._segments[0]
        if len(self._segments) == 1 or oldest.end > offset:
            return None
        if oldest in self._pending:
            self.flush()
        doomed = oldest.path + layout.DELETED
        try:
            self._files.rename(oldest.path, doomed)
            del self._segments[0]
            self._closed_bytes -= oldest.size
            self._tally.evicted_bytes += oldest.size
            if oldest in self._recently_read:
                self._recently_read.remove(oldest)
            if oldest in self._pending:
                self._pending.remove(oldest)  # its maps found no room: nobody needs them any more
            oldest.release_file()
        except OSError as error:
            raise StorageError(f"{self.partition}: cannot evict ({error}); mend the disk") from error
        return Eviction(self._files, oldest, doomed, self._snapshots)
