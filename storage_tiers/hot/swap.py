"""Swaps closed segments for one that was rewritten without some of their records. A crash at any step leaves the old segments
or the new one, never parts of both.

The new files lie synced beside the old ones, under names that end in `.cleaned`. The steps, each of which ends before the next
begins:

1. `prepare`: the swap file, which lists the segments and files, becomes durable; from here on a start completes the swap;
2. `rename`: the old logs are renamed away, their indexes removed, the new files get their names;
3. `commit`: the directory is synced, the swap file removed, the old logs are freed.

A start completes a prepared swap (`complete_swaps`); its steps can be repeated. A swap file that is left behind would remove
segments that began later at the same offsets. The removal of the swap file is therefore durable before anything in such
segments counts as flushed, because a flush needs a sync of the same directory. If no log beside a swap file has the size of the
new one, the file belongs to other segments, as in a directory that was copied in the middle of a swap. Then only the swap file
is removed.

After a failure of step 1, a crash may leave the old segments or the new one. The caller calls `end`, which restores the old
segments before step 2 and keeps the new one after it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.files import Files, replace_file
from storage_tiers.hot import layout
from storage_tiers.hot.indexes import TimeEntry

log = logging.getLogger(__name__)

_VERSION = 0
#: The offset index is last, because a segment that has one is trusted.
_SUFFIXES = (layout.TRANSACTION_INDEX, layout.TIME_INDEX, layout.LOG, layout.OFFSET_INDEX)


class RewrittenSegment(NamedTuple):
    """A segment of offsets [base, end) and `size` bytes that replaces the segments in `replaces`, each as (base, size in
    bytes). `newest` is its newest record by timestamp. Its files are synced, under names that end in `.cleaned`."""

    base: int
    end: int
    size: int
    newest: TimeEntry
    has_transactions: bool
    replaces: tuple[tuple[int, int], ...]


class _Step(Enum):
    BEGUN = 0
    PREPARED = 1
    RENAMED = 2
    ENDED = 3
    #: The disk refused in the middle of `rename`: the next start completes it.
    HALF_RENAMED = 4
    #: The old segments are being restored; the disk may have refused a step.
    ABORTING = 5


class SegmentSwap:
    """One swap. `prepare`, `commit` and `end` block and may run in any thread; `rename` runs on the event loop. `bases` are the
    base offsets of the old segments."""

    __slots__ = ("_directory", "_files", "_lock", "_path", "_size", "_step", "_suffixes", "bases")

    def __init__(self, files: Files, directory: str, new: RewrittenSegment) -> None:
        self._files = files
        self._directory = directory
        self._path = _path(directory, new.base, layout.SWAP)
        self._size = new.size
        self._suffixes = tuple(each for each in _SUFFIXES if new.has_transactions or each != layout.TRANSACTION_INDEX)
        self._lock = threading.Lock()
        self._step = _Step.BEGUN
        self.bases = tuple(base for base, _ in new.replaces)

    @property
    def is_ended(self) -> bool:
        return self._step is _Step.ENDED

    def prepare(self) -> None:
        """Makes the swap file durable, unless the swap was ended. Blocking. OSError if the disk refuses."""
        with self._lock:
            if self._step is _Step.BEGUN:
                # Syncs the names of the new files first: a swap file without them would lose the segments that they replace.
                self._files.fsync_dir(self._directory)
                content = {
                    "version": _VERSION,
                    "bases": self.bases,
                    "size": self._size,
                    "suffixes": self._suffixes,
                }
                replace_file(self._files, self._path, json.dumps(content).encode())
                self._step = _Step.PREPARED

    def rename(self) -> bool:
        """Gives the new files their names; False if the swap was ended before. OSError if the disk refuses: the log can no
        longer be read then, and the next start completes the swap."""
        if self._step is not _Step.PREPARED:
            return False
        self._step = _Step.HALF_RENAMED
        _rename(self._files, self._directory, self.bases, self._suffixes)
        self._step = _Step.RENAMED
        return True

    def commit(self) -> None:
        """Makes the new names durable and frees the old logs, unless that was done. Blocking. OSError if the disk refuses."""
        with self._lock:
            if self._step is _Step.RENAMED:
                self._remove_swap_file()
        for base in self.bases:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(_path(self._directory, base, layout.LOG) + layout.DELETED)

    def end(self) -> None:
        """Ends the swap before another change of the log: restores the old segments unless the new one has its names. Waits
        for another thread's step. OSError if the disk refuses, or refused in the middle of `rename`."""
        with self._lock:
            if self._step is _Step.ENDED:
                return
            if self._step is _Step.HALF_RENAMED:
                raise OSError(f"{self._path} stays for the next start, which completes it")
            if self._step is _Step.RENAMED:
                self._remove_swap_file()
            else:
                self._step = _Step.ABORTING
                self._restore()

    def _restore(self) -> None:
        # Removes the swap file first, durably: a start that found it without the new files would only remove the old ones.
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._path)
        self._files.fsync_dir(self._directory)
        for suffix in self._suffixes:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(_path(self._directory, self.bases[0], suffix) + layout.CLEANED)
        self._step = _Step.ENDED

    def _remove_swap_file(self) -> None:
        self._files.fsync_dir(self._directory)
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._path)
        self._step = _Step.ENDED


def complete_swaps(files: Files, directory: str) -> None:
    """Completes the swaps that were prepared before a crash. OSError if the disk refuses, StorageError for a swap file that
    cannot be read."""
    for name in os.listdir(directory):
        if not name.endswith(layout.SWAP):
            continue
        path = os.path.join(directory, name)
        bases, size, suffixes = _read(path)
        new = _path(directory, bases[0], layout.LOG)
        # Once the new log has its name, the old one is gone. A `.cleaned` file beside it belongs to a later cleaning and is not
        # complete.
        has_new = _size(new + layout.CLEANED) == size
        if has_new or _size(new) == size:
            _rename(files, directory, bases, suffixes, has_new=has_new)
            files.fsync_dir(directory)
        else:
            events.warning(log, "swap.not_completed", path=path)
        files.unlink(path)


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return None


def _rename(
    files: Files, directory: str, bases: Sequence[int], suffixes: Sequence[str], *, has_new: bool = True
) -> None:
    """Renames the old logs away and the new files to their names. `has_new` is False if the new log already has its name."""
    first = bases[0]
    for base in bases if has_new else bases[1:]:
        log = _path(directory, base, layout.LOG)
        with contextlib.suppress(FileNotFoundError):
            files.rename(log, log + layout.DELETED)
    producers = layout.SNAPSHOT, layout.BATCHES
    kept = {(first, suffix) for suffix in (*suffixes, *producers)}
    for base, suffix in itertools.product(bases, (*layout.COMPANIONS, *producers)):
        if (base, suffix) not in kept:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(_path(directory, base, suffix))
    for suffix in suffixes:
        new = _path(directory, first, suffix)
        if suffix == layout.LOG and not has_new:
            continue
        with contextlib.suppress(FileNotFoundError):
            files.rename(new + layout.CLEANED, new)


def _read(path: str) -> tuple[list[int], int, list[str]]:
    """Reads a swap file: (base offsets, the new log's size in bytes, suffixes)."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        found = json.loads(content)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}")
        if not found["bases"]:
            raise ValueError("no segments")
        return [int(base) for base in found["bases"]], int(found["size"]), [str(suffix) for suffix in found["suffixes"]]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StorageError(f"{path} is damaged ({error}); put it back from a copy") from error


def _path(directory: str, base: int, suffix: str) -> str:
    return os.path.join(directory, layout.file_name(base, suffix))
