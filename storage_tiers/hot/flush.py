"""Makes a partition's log durable off the event loop: the loop gathers what to sync, any thread may sync it.

One flush covers every append made before it was gathered; appends continue meanwhile. The steps, each of which ends before the
next begins:

1. the bytes of the logs;
2. time and transaction indexes of closed segments, producer snapshots and the epoch history, each under a temporary
   name, synced, renamed;
3. the directory: the names of new segments and of (2);
4. the offset indexes, whose presence means that all of the above is durable.

A failed fsync of a log is final until restart: the kernel may have dropped the pages, so a second fsync that succeeds proves
nothing. Other failures are not final: on a disk too full for (2) the log is durable and a later flush writes its indexes; when
descriptors run out, a later flush starts over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from storage_tiers import events
from storage_tiers.files import Files, short_of_descriptors, stage_file
from storage_tiers.hot import sync_failure
from storage_tiers.hot.segment import Segment
from storage_tiers.types import EpochEntry, SharedFile

log = logging.getLogger(__name__)


class FlushTargets:
    """One flush. `HotLog.begin_flush` gathers it, one thread calls `sync` once, `HotLog.finish_flush` applies it.

    `logs` are counted descriptors, `closed` the segments whose indexes it writes, `small` the paths of other files, each with a
    function that returns its content, `names` whether the directory needs an fsync, `snapshots` the offsets of producer
    snapshots in `small`."""

    __slots__ = (
        "_directory",
        "_durable",
        "_files",
        "cancelled",
        "closed",
        "epochs",
        "failure",
        "indexes_error",
        "lock",
        "logs",
        "names",
        "newest_base",
        "small",
        "snapshots",
        "synced",
        "upto",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        durable: int,
        upto: int,
        logs: Sequence[SharedFile],
        closed: Sequence[Segment],
        small: Sequence[tuple[str, Callable[[], bytes]]],
        names: bool,
        newest_base: int,
        epochs: tuple[EpochEntry, ...],
        snapshots: Sequence[int],
    ) -> None:
        self._files = files
        self._directory = directory
        #: Offset below which everything was durable before this flush.
        self._durable = durable
        #: Offset below which everything is durable after this flush.
        self.upto = upto
        self.logs = logs
        self.closed = closed
        self.small = small
        self.names = names
        #: Segments that began after this one have names that this flush does not make durable.
        self.newest_base = newest_base
        self.epochs = epochs
        self.snapshots = snapshots
        #: Held while syncing; a truncation waits for it.
        self.lock = threading.Lock()
        self.cancelled = False
        self.synced = False
        #: The error of a failed fsync. A later success does not make up for it.
        self.failure: OSError | None = None
        self.indexes_error: OSError | None = None

    def sync(self) -> None:
        """Makes everything gathered durable. OSError if that fails for the log itself; `failure` is then set if an fsync
        failed."""
        with self.lock:
            if self.cancelled or self.synced:
                return
            self._sync()
            self.synced = True

    def _sync(self) -> None:
        try:
            for file in self.logs:
                self._files.fsync(file.fd)
            maps = self._unless_refused(self._write_small_files)
            if self.names or self.small or self.closed:
                self._files.fsync_dir(self._directory)
        except OSError as error:
            if not short_of_descriptors(error):
                self.failure = error
                sync_failure.note(self._files, self._directory, self._durable)
            raise
        if maps:
            self._unless_refused(self._write_offset_indexes)

    def _unless_refused(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            self.indexes_error = error
            events.warning(log, "indexes.unsynced", path=self._directory, error=error)
            return False
        return True

    def _write_small_files(self) -> None:
        for path, made in self.small:
            self._files.rename(stage_file(self._files, path, made()), path)
        for segment in self.closed:
            for path, content in segment.encode_time_and_transactions():
                self._files.rename(stage_file(self._files, path, content), path)

    def _write_offset_indexes(self) -> None:
        # These files are not synced: a truncated or zeroed offset index makes lookups slower, not wrong.
        for segment in self.closed:
            path, content = segment.encode_offset_index()
            segment.index_on_disk = True
            fd = self._files.open(path, create=True, truncate=True)
            try:
                self._files.pwrite(fd, (content,), 0)
            finally:
                self._files.close(fd)

    def release(self) -> None:
        """Releases the descriptors; on the event loop only."""
        for file in self.logs:
            file.release()
        self.logs = ()
