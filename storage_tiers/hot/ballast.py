"""Reserved space on the disk: a file that is truncated when a full disk prevents the writes that would free space.

An eviction first saves a manifest, and a rise of log start first saves the new log start. These writes need a few KiB that a
full disk does not have, so without the ballast the disk would stay full for ever. Invariants: only writes through
`FilesWithBallast` release the ballast; it is recreated only if twice its size is free. A release frees at most `BALLAST_BYTES`.
A disk that was full from the start has no ballast.
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
#: The ballast's largest size in bytes. The ballast also takes at most 1/SHARE of the data directory's disk.
BALLAST_BYTES = 4 << 20
SHARE = 64


class Ballast:
    """`on_release` is called in the thread that found the disk full, before the space is free."""

    def __init__(self, directory: str, on_release: Callable[[], None] = lambda: None) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._directory = directory
        self.on_release = on_release
        self.is_released = False

    def make(self) -> None:
        """Creates or recreates the ballast if there is room. Blocks briefly: it allocates space and writes nothing. OSError if
        the disk refuses."""
        disk = os.statvfs(self._directory)
        size = min(BALLAST_BYTES, disk.f_blocks * disk.f_frsize // SHARE)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_blocks * 512 >= size:
                self.is_released = False
                return
        if disk.f_bavail * disk.f_frsize < 2 * size:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):  # a file system without reservation, or one that has filled up meanwhile
                os.posix_fallocate(fd, 0, size)
                self.is_released = False
        finally:
            os.close(fd)

    def release(self) -> bool:
        """Truncates the ballast. True if that freed space."""
        self.is_released = True
        self.on_release()
        try:
            held = os.stat(self._path).st_blocks
            os.truncate(self._path, 0)
        except OSError:
            return False
        return held > 0


class FilesWithBallast:
    """Files for writes that must precede a removal. A write that finds the disk full releases the ballast. If that freed space,
    the write is repeated once."""

    def __init__(self, files: Files, ballast: Ballast) -> None:
        self._files = files
        self._ballast = ballast

    def _with_retry(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._ballast.release():
                raise
        return write()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        return self._with_retry(lambda: self._files.open(path, create=create, exclusive=exclusive, truncate=truncate))

    def close(self, fd: int) -> None:
        self._files.close(fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        return self._with_retry(lambda: self._files.pwrite(fd, buffers, position))

    def truncate(self, fd: int, size: int) -> None:
        self._files.truncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._files.fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._with_retry(lambda: self._files.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._with_retry(lambda: self._files.link(source, target))

    def unlink(self, path: str) -> None:
        self._files.unlink(path)

    def mkdir(self, path: str) -> None:
        self._with_retry(lambda: self._files.mkdir(path))

    def rmdir(self, path: str) -> None:
        self._files.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        self._files.fsync_dir(path)
