"""A failed fsync of a log, recorded for the current boot of the machine.

After such a failure the page cache may hold pages that look clean but never reached the disk. A process that starts later in
this boot reads these pages and finds every batch whole, but a successful fsync does not write them. So the failure is recorded
beside the log. The next start copies everything unsynced into new files, whose pages are all dirty, syncs these, and replaces
the old files. After a reboot the cache is gone: recovery reads what the disk holds, and nothing is copied.

The record needs no fsync because it matters for this boot only. A disk that accepts no write at all gets no record; the next
start then trusts pages that look clean.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import NamedTuple

from storage_tiers import events
from storage_tiers.errors import StorageError
from storage_tiers.files import Files
from storage_tiers.hot import layout

log = logging.getLogger(__name__)

FILE_NAME = "fsync-failed"
#: Bytes read and written at a time while a log is copied.
COPY_BYTES = 1 << 20
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Note(NamedTuple):
    """An fsync failed in the boot `boot_id`, when the log was synced below the offset `durable`."""

    boot_id: str
    durable: int


def boot_id() -> str:
    """The id of the current boot. It is empty if the system has none; all boots then count as the same."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def note(files: Files, directory: str, durable: int) -> None:
    """Records the failure if the disk accepts the few bytes; else logs an error."""
    path = os.path.join(directory, FILE_NAME)
    try:
        fd = files.open(path, create=True, truncate=True)
        try:
            files.pwrite(fd, (f"{boot_id()} {durable}\n".encode(),), 0)
        finally:
            files.close(fd)
    except OSError as error:
        events.error(log, "fsync.unnoted", path=path, error=error)


def read(directory: str) -> Note | None:
    """The recorded failure, or None. An unreadable record counts as a failure before which nothing was synced."""
    try:
        with open(os.path.join(directory, FILE_NAME), encoding="ascii", errors="replace") as file:
            boot, _, durable = file.read().rstrip("\n").rpartition(" ")
    except FileNotFoundError:
        return None
    return Note(boot, int(durable)) if durable.isascii() and durable.isdigit() else Note(boot_id(), 0)


def rewrite(files: Files, directory: str, durable: int) -> None:
    """Replaces each segment that ends above `durable` by a synced copy. The segments' `.index` files are removed first, so that
    recovery trusts none of the segments. StorageError if a disk operation fails; the old segments are then still there."""
    bases = sorted(
        known.offset for known in map(layout.parse_file, os.listdir(directory)) if known and known.suffix == layout.LOG
    )
    ends = [*bases[1:], durable + 1]  # the newest segment's end is unknown
    doubtful = [base for base, end in zip(bases, ends, strict=False) if end > durable]
    try:
        for base in doubtful:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(os.path.join(directory, layout.file_name(base, layout.OFFSET_INDEX)))
        for base in doubtful:
            _copy(files, os.path.join(directory, layout.file_name(base, layout.LOG)))
        files.fsync_dir(directory)
    except OSError as error:
        raise StorageError(
            f"an fsync of the log in {directory} failed, and the unsynced part cannot be copied ({error}); "
            "free space, or repair or replace the disk: the node tries again"
        ) from error
    events.warning(log, "log.rewritten", path=directory, segments=len(doubtful), durable=durable)


def forget(files: Files, directory: str) -> None:
    """Removes the record, because the unsynced part is now durable or was truncated."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(os.path.join(directory, FILE_NAME))


def _copy(files: Files, path: str) -> None:
    temporary = path + layout.TEMPORARY
    source = files.open(path)
    try:
        target = files.open(temporary, create=True, truncate=True)
        try:
            position = 0
            while data := os.pread(source, COPY_BYTES, position):
                files.pwrite(target, (data,), position)
                position += len(data)
            files.fsync(target)
        finally:
            files.close(target)
    finally:
        files.close(source)
    files.rename(temporary, path)
