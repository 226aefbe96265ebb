"""One segment that leaves the log: what is left to do with its files once nobody finds it any more.

Order, each step before the next, and all of them before the next segment goes: `sync`, which may run in any thread;
`finish`; `free`, in any thread. A power loss must not bring an older segment back without its successor, as a hole in the
middle would go unnoticed; without its log a segment's other files are rubbish that the next start sweeps.

Not promised: that a step which fails is tried again. The segment is gone; what is left of it goes at the next start.
"""

from __future__ import annotations

import os

from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot import recovery
from storage_tiers.hot.segment import Segment
from storage_tiers.hot.snapshots import Snapshots


class Eviction:
    """Made by `HotLog.evict_oldest`. Readers' descriptors stay good throughout."""

    __slots__ = ("_doomed", "_files", "_segment", "_snapshots")

    def __init__(self, files: Files, segment: Segment, doomed: str, snapshots: Snapshots) -> None:
        """`doomed` is the new name of the segment's log."""
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
        """Removes indexes and producer snapshots. On the event loop, where the topic has not been deleted: afterwards these
        names may be another one's."""
        try:
            recovery.remove_files(self._files, self._segment)
            self._snapshots.drop_below(self._segment.end)
        except OSError as error:
            raise StorageError(f"cannot evict {self._segment.path} ({error}); repair or replace the disk") from error

    def free(self) -> None:
        """Removes the log. Blocking: the file system frees a large file's blocks before this returns."""
        self._files.unlink(self._doomed)
