"""Room on a full disk for what frees room: a file that is given up when a saved manifest or a log start finds none.

Evicting needs a manifest on disk first, and hiding records a log start: a few KiB that a disk without a free byte does not
have, so that it would stay full for ever. Invariants: only what goes through `FilesWithBallast` takes from it; it is made again
only where twice its size is free. Not promised: room for more than `BALLAST_BYTES`, nor a ballast on a disk that was full
before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage_tiers.files import Buffer, Files

T = TypeVar("T")

FILE_NAME = "ballast"
#: Of the data directory's disk, at most; and at most this share of it.
BALLAST_BYTES = 4 << 20
SHARE = 64


class Ballast:
    """`on_given_up` is told in whatever thread found the disk full, before the room is free."""

    def __init__(self, directory: str, on_given_up: Callable[[], None] = lambda: None) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self.on_given_up = on_given_up
        self.given_up = False

    def make(self) -> None:
        """Makes it, or makes it again, where there is room. Blocking, briefly: nothing is written to it."""
        disk = os.statvfs(self._directory)
        size = min(BALLAST_BYTES, disk.f_blocks * disk.f_frsize // SHARE)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_blocks * 512 >= size:
                self.given_up = False
                return
        if disk.f_bavail * disk.f_frsize < 2 * size:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system that reserves nothing, or is full meanwhile
                os.posix_fallocate(fd, 0, size)
                self.given_up = False
        finally:
            os.close(fd)

    def give_up(self) -> bool:
        """Whether there is room now that was not there before."""
        self.given_up = True
        self.on_given_up()
        try:
            held = os.stat(self._path).st_blocks
            os.truncate(self._path, 0)
        except OSError:
            return False
        return held > 0


class FilesWithBallast:
    """Files for what makes room: where there is none, the ballast is given up and the write made once more."""

    def __init__(self, files: Files, ballast: Ballast) -> None:
        self._files = files
        self._ballast = ballast

    def _made(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._ballast.give_up():
                raise
        return write()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        return self._made(lambda: self._files.open(path, create=create, exclusive=exclusive, truncate=truncate))

    def close(self, fd: int) -> None:
        self._files.close(fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return self._made(lambda: self._files.pwrite(fd, buffers, position))

    def truncate(self, fd: int, size: int) -> None:
        self._files.truncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._files.fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._made(lambda: self._files.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._made(lambda: self._files.link(source, target))

    def unlink(self, path: str) -> None:
        self._files.unlink(path)

    def mkdir(self, path: str) -> None:
        self._made(lambda: self._files.mkdir(path))

    def rmdir(self, path: str) -> None:
        self._files.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        self._files.fsync_dir(path)
