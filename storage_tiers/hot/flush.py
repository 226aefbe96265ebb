"""Making a partition's log durable, off the event loop: what to sync is gathered on it, the syncing may run in a thread.

One flush covers every append before it was gathered; appends go on meanwhile. Order, each step before the next:

1. the bytes of the logs;
2. the maps of closed segments, producer snapshots and the epoch history, each under a temporary name, synced, renamed;
3. the directory: the names of new segments and of (2);
4. the names of the `.index` files, whose presence says that all of the above is durable.

A failed fsync of a log is final until restart: the kernel may have dropped the pages, so that a second one that
succeeds proves nothing. A disk too full for (2) is not: the log is durable, its maps are written by a later flush.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from storage_tiers.files import Files, stage_file
from storage_tiers.hot.segment import Segment
from storage_tiers.types import EpochEntry, SharedFile

log = logging.getLogger(__name__)


class FlushTargets:
    """Gathered by `HotLog.begin_flush`, synced by anyone in any thread, once, given back to `HotLog.finish_flush`."""

    __slots__ = (
        "_directory",
        "_files",
        "cancelled",
        "closed",
        "epochs",
        "lock",
        "logs",
        "maps_error",
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
        upto: int,
        logs: Sequence[SharedFile],
        closed: Sequence[Segment],
        small: Sequence[tuple[str, bytes]],
        names: bool,
        newest_base: int,
        epochs: tuple[EpochEntry, ...],
        snapshots: Sequence[int],
    ) -> None:
        self._files = files
        self._directory = directory
        #: Offset below which everything is durable afterwards.
        self.upto = upto
        self.logs = logs
        self.closed = closed
        self.small = small
        self.names = names
        #: Segments that began after this one have names that this flush does not make durable.
        self.newest_base = newest_base
        self.epochs = epochs
        self.snapshots = snapshots
        #: Held while syncing: who wants to truncate waits for it.
        self.lock = threading.Lock()
        self.cancelled = False
        self.synced = False
        self.maps_error: OSError | None = None

    def sync(self) -> None:
        """OSError if the log itself could not be made durable."""
        with self.lock:
            if self.cancelled or self.synced:
                return
            for file in self.logs:
                self._files.fsync(file.fd)
            indexes = self._write_maps()
            if self.names or self.small or self.closed:
                self._files.fsync_dir(self._directory)
            for temporary, path in indexes:
                self._files.rename(temporary, path)
            self.synced = True

    def _write_maps(self) -> list[tuple[str, str]]:
        """Writes what stands beside the logs; returns the offset indexes' (temporary name, name)."""
        indexes: list[tuple[str, str]] = []
        try:
            for path, content in self.small:
                self._files.rename(stage_file(self._files, path, content), path)
            for segment in self.closed:
                *maps, (index, entries) = segment.encode_maps()
                for path, content in maps:
                    self._files.rename(stage_file(self._files, path, content), path)
                indexes.append((stage_file(self._files, index, entries), index))
        except OSError as error:
            self.maps_error = error
            log.warning("%s: the log is synced, its indexes are not (%s); trying again later", self._directory, error)
            for temporary, _ in indexes:
                self._files.unlink(temporary)
            return []
        return indexes

    def release(self) -> None:
        """Gives the descriptors back; on the event loop only."""
        for file in self.logs:
            file.release()
        self.logs = ()
