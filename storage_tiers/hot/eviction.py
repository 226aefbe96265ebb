"""The removal of one segment's files after it has left the log.

The steps run in this order, and all of them before the next segment is evicted: `sync` in any thread; `finish` on the event
loop; `free` in any thread. A power loss must not restore an older segment without its successor, because the hole between them
would go unnoticed. The next start removes the other files of a segment whose log is gone.

A failed step is not retried: the segment has left the log, and the next start removes the files that remain.
"""

from __future__ import annotations

import os

from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot import recovery
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.snapshots import Snapshots


class Eviction:
    """Created by `HotLog.evict_oldest`. Readers' descriptors stay valid throughout."""

    __slots__ = ("_doomed", "_files", "_segment", "_snapshots")

    def __init__(self, files: Files, segment: Segment, doomed: str, snapshots: Snapshots) -> None:
        """`doomed` is the path that the segment's log was renamed to."""
        self._files = files
        self._segment = segment
        self._doomed = doomed
        self._snapshots = snapshots

    def sync(self) -> None:
        """Makes the new name of the log durable. Blocking: a directory's fsync. StorageError if the disk fails."""
        try:
            self._files.fsync_dir(os.path.dirname(self._doomed))
        except OSError as error:
            raise StorageError(f"cannot evict {self._segment.path} ({error}); repair or replace the disk") from error

    def finish(self) -> None:
        """Removes indexes and producer snapshots. Call it on the event loop, and only while the topic exists: after a deletion
        the same paths may belong to a new topic. StorageError if the disk fails."""
        try:
            recovery.remove_files(self._files, self._segment)
            self._snapshots.drop_below(self._segment.end)
        except OSError as error:
            raise StorageError(f"cannot evict {self._segment.path} ({error}); repair or replace the disk") from error

    def free(self) -> None:
        """Removes the log file. Blocking, because the file system frees a large file's blocks first. OSError if it fails."""
        self._files.unlink(self._doomed)
