"""A failed fsync of a log, remembered for this boot of the machine.

After it the page cache may hold pages that look clean and never reached the disk. A process that starts later in the same boot
reads them, finds every batch whole, and an fsync that succeeds says nothing of them. So the failure is noted beside the log,
and the next start copies what had not been synced into new files, whose pages are all dirty, syncs these, and puts them in the
place of the old ones. After another boot the cache is gone: recovery reads what the disk holds, and nothing is copied.

The note needs no fsync, as it is of use for this boot only. Not promised: a note where the disk takes no write at all; the
next start then reads what looks clean.
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
#: Read and written at once while a log is copied.
COPY_BYTES = 1 << 20
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Note(NamedTuple):
    """Below `durable` the log had been synced when, in the boot `boot_id`, an fsync failed."""

    boot_id: str
    durable: int


def boot_id() -> str:
    """Another one after each boot; empty where the system does not say, which counts as the same boot for ever."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def note(files: Files, directory: str, durable: int) -> None:
    """Remembers it, if the disk takes the few bytes."""
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
    """None if there is none; of one that cannot be made out, that nothing was synced."""
    try:
        with open(os.path.join(directory, FILE_NAME), encoding="ascii", errors="replace") as file:
            boot, _, durable = file.read().rstrip("\n").rpartition(" ")
    except FileNotFoundError:
        return None
    return Note(boot, int(durable)) if durable.isascii() and durable.isdigit() else Note(boot_id(), 0)


def rewrite(files: Files, directory: str, durable: int) -> None:
    """Puts copies, synced, in the place of the segments that do not end at or below `durable`. Recovery trusts none of them
    then: their `.index` goes first. StorageError if the disk refuses; what was there is still there."""
    bases = sorted(
        known.offset for known in map(layout.parse_file, os.listdir(directory)) if known and known.suffix == layout.LOG
    )
    ends = [*bases[1:], durable + 1]  # of the newest one the end is not known
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
            f"an fsync of the log in {directory} failed, and what it had not synced cannot be written anew ({error}); "
            "free space, or repair or replace the disk: it is tried again"
        ) from error
    events.warning(log, "log.rewritten", path=directory, segments=len(doubtful), durable=durable)


def forget(files: Files, directory: str) -> None:
    """What was not durable is now, or was cut."""
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
