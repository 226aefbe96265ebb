"""Tracks how far a partition's log is durable and what the next flush has to write. One flush runs at a time.

Invariants: everything below `recovery_point` survives a power loss. `pending` lists, oldest first, the closed segments whose
indexes exist only in memory. After a failed fsync nothing is flushed until the log is reopened, because a second fsync that
succeeds proves nothing. `flush` defines the steps of a flush and their order.

A flush that cannot write the indexes still makes the log durable; a later flush writes them.
"""

from __future__ import annotations

import os
from functools import partial

from storage_tiers.errors import StorageError
from storage_tiers.hot import layout, leader_epochs
from storage_tiers.hot.flush import FlushTargets
from storage_tiers.hot.log_end import LogEnd
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.segments import Segments
from storage_tiers.hot.snapshots import Snapshots
from storage_tiers.types import EpochEntry, SharedFile


class Durability:
    """`recovery_point` is an offset. `snapshots` holds the producer snapshots; the snapshots of closed segments wait there for
    a flush. `failure` is the error of a failed fsync, else None."""

    __slots__ = (
        "_directory",
        "_end",
        "_files",
        "_flushing",
        "_names_dirty",
        "_partition",
        "_segments",
        "_stored_epochs",
        "failure",
        "pending",
        "recovery_point",
        "snapshots",
    )

    def __init__(
        self,
        segments: Segments,
        end: LogEnd,
        snapshots: Snapshots,
        ground: LogGround,
        *,
        recovery_point: int,
        stored_epochs: tuple[EpochEntry, ...],
    ) -> None:
        self._segments = segments
        self._end = end
        self._directory = ground.directory
        self._partition = ground.partition
        self._files = ground.files
        self._flushing: FlushTargets | None = None
        # Whether some names of segment files may not be durable yet.
        self._names_dirty = False
        self._stored_epochs = stored_epochs
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        self.pending = [segment for segment in segments.all[:-1] if segment.offsets is not None]
        #: The error of a failed fsync.
        self.failure: OSError | None = None

    # --- changes of the log -------------------------------------------------------------------------------------------
    def closed(self, segment: Segment) -> None:
        """Notes that `segment` was closed. The next segment begins at the log end, with the present producer state."""
        self.snapshots.take(self._end.offset, self._end.producers)
        self.pending.append(segment)
        self._names_dirty = True

    def cut(self, newest: Segment) -> None:
        """Notes that the log was truncated: `newest` is its last segment and may have shrunk."""
        self.recovery_point = min(self.recovery_point, newest.end)
        self.pending = [segment for segment in self.pending if segment.base < newest.base]
        self.snapshots.retain(0, newest.end)

    def evicted(self, segment: Segment) -> None:
        """Notes that `segment` left the log: indexes of it that could not be written are no longer needed."""
        if segment in self.pending:
            self.pending.remove(segment)

    def discarded(self) -> None:
        """Notes that all segments were removed."""
        self.snapshots.retain(0, -1)
        self.pending = []

    def started_over(self, offset: int, epochs: tuple[EpochEntry, ...]) -> None:
        """Notes that the log is empty and starts at `offset`, and that its producer snapshot and epoch history are durable.
        Clears `failure`."""
        self.snapshots.stored = {offset}
        self._stored_epochs = epochs
        self.recovery_point = offset
        self._names_dirty = True
        self.failure = None

    # --- flushing -----------------------------------------------------------------------------------------------------
    @property
    def is_flushing(self) -> bool:
        """Whether a flush was gathered and has not ended yet."""
        return self._flushing is not None

    def is_current(self, targets: FlushTargets) -> bool:
        """Whether this flush is still the current one. False once a change of the log has voided it."""
        return targets is self._flushing

    def gather(self, *, closing: bool) -> FlushTargets:
        """Prepares a flush of everything up to the log end. `closing` also writes the newest segment's indexes and producer
        snapshot, so that the next start does not read that segment. No other flush may be in progress. StorageError once an
        fsync has failed."""
        if self.failure is not None:
            raise self._not_synced(self.failure)
        newest, end = self._segments.newest, self._end
        logs: list[SharedFile] = [segment.file().acquire() for segment in self.pending]
        if end.offset > self.recovery_point and newest.size:
            logs.append(newest.file().acquire())
        if closing and newest.size and not (newest.offsets is None and newest.index_on_disk):
            newest.load_indexes()
            newest.close_indexes()
            self.pending.append(newest)
            self.snapshots.take(end.offset, end.producers)
        writes = closing or bool(self.pending)
        epochs = end.epochs.below(end.offset) if writes else self._stored_epochs
        small = self.snapshots.pending_files() if writes else []
        if epochs != self._stored_epochs:
            small.append((os.path.join(self._directory, layout.EPOCHS), partial(leader_epochs.encode, epochs)))
        self._flushing = FlushTargets(
            self._files,
            self._directory,
            durable=self.recovery_point,
            upto=end.offset,
            logs=logs,
            closed=tuple(self.pending),
            small=small,
            names=self._names_dirty,
            newest_base=newest.base,
            epochs=epochs,
            snapshots=self.snapshots.pending if writes else (),
        )
        return self._flushing

    def sync(self, targets: FlushTargets) -> None:
        """Runs the flush synchronously. Call `end_flush` afterwards, even if this raises. StorageError if the disk fails."""
        try:
            targets.sync()
        except OSError as error:
            if targets.failure is not None:
                raise self._not_synced(error) from error
            raise StorageError(f"{self._partition}: cannot flush now ({error}); the node tries again") from error

    def _not_synced(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self._partition}: fsync failed ({error}); repair or replace the disk, then restart the node"
        )

    def end_flush(self) -> bool:
        """Ends the flush in progress: applies its results if it was synced, else voids it. Waits for a thread that is syncing.
        True if the newest segment's indexes are now only in files, which happens when a log is closed."""
        targets = self._flushing
        if targets is None:
            return False
        self._flushing = None
        with targets.lock:
            targets.cancelled = True
        targets.release()
        self.failure = self.failure or targets.failure
        if not targets.synced:
            return False
        newest = self._segments.newest
        self.recovery_point = max(self.recovery_point, targets.upto)
        self._names_dirty = newest.base > targets.newest_base
        if targets.indexes_error is not None:
            return False
        for segment in targets.closed:
            segment.drop_indexes()
        self.pending = [segment for segment in self.pending if segment not in targets.closed]
        self._stored_epochs = targets.epochs
        self.snapshots.written(targets.snapshots)
        return bool(targets.closed) and newest is targets.closed[-1]
