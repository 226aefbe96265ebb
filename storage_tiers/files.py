"""The only module that changes durable state on disk.

All durable state (log, indexes, checkpoints, metadata log, directory store, saved manifests) is written through a `Files`, so
that a test can record each operation, cut the run after any of them, and replay what a power loss may leave: unsynced writes
dropped or torn, unsynced renames, creations and unlinks undone. Reading uses `os.pread` directly.

Rules for callers: a file's bytes are durable after `fsync(fd)`, its name after `fsync_dir(parent)`. To replace a file, write it
under a temporary name, fsync, rename, fsync_dir (`replace_file` does all four).

Connections that are not counted here may briefly use up all descriptors. `DescriptorReserve` keeps a few for operations that
must not fail meanwhile. If the reserve does not suffice, callers retry.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Files(Protocol):
    """Operations on files and directories. Sizes and positions are in bytes. Every method raises OSError if the system
    refuses; `short_of_descriptors` recognises the error that is worth a retry."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        """A read-write, close-on-exec descriptor. With `exclusive`, FileExistsError if the name exists."""

    def close(self, fd: int) -> None: ...

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Writes all buffers, gathered, at byte `position`; returns the number of bytes. After an OSError the file may hold a
        torn tail, which the caller truncates."""

    def truncate(self, fd: int, size: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Adds a name to a file. FileExistsError if `target` exists, a check that rename lacks."""

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Creates one directory, if it does not exist."""

    def rmdir(self, path: str) -> None: ...

    def fsync_dir(self, path: str) -> None:
        """Opens and syncs the directory. An error with `short_of_descriptors` comes from the open, not from the fsync."""


def short_of_descriptors(error: OSError) -> bool:
    """Whether the process or the machine had no descriptor left. Nothing was done then; the caller may retry."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class DescriptorReserve:
    """Up to `size` open descriptors, closed one by one when a file cannot be opened for lack of one. Thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: Number of times that a descriptor was taken, or that none was left.
        self.shortages = 0
        self._parked: list[int] = []

    @property
    def left(self) -> int:
        return len(self._parked)

    def fill(self) -> None:
        """Refills the reserve as far as descriptors are available."""
        try:
            while len(self._parked) < self.size:
                self._parked.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if not short_of_descriptors(error):
                raise

    def release_one(self) -> bool:
        """Closes one descriptor of the reserve; False if it is empty."""
        self.shortages += 1
        try:
            os.close(self._parked.pop())
        except IndexError:
            return False
        return True

    def close(self) -> None:
        while self._parked:
            os.close(self._parked.pop())


class OsFiles:
    """The real file system. Draws on `reserve` when a file or directory cannot be opened for lack of a descriptor."""

    _reserve: DescriptorReserve | None = None

    def __init__(self, reserve: DescriptorReserve | None = None) -> None:
        self._reserve = reserve

    def _open(self, path: str, flags: int) -> int:
        while True:
            try:
                return os.open(path, flags, 0o644)
            except OSError as error:
                if not short_of_descriptors(error) or self._reserve is None or not self._reserve.release_one():
                    raise

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= os.O_CREAT if create else 0
        flags |= os.O_EXCL if exclusive else 0
        flags |= os.O_TRUNC if truncate else 0
        return self._open(path, flags)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        written = os.pwritev(fd, buffers, position)
        total = sum(map(len, buffers))
        if written != total:
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(fd, rest[written:], position + written)
        return written

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def stage_file(files: Files, path: str, content: Buffer) -> str:
    """Writes and syncs `content` under a temporary name and returns that name; the caller renames it to `path`."""
    temporary = path + ".tmp"
    fd = files.open(temporary, create=True, truncate=True)
    try:
        files.pwrite(fd, (content,), 0)
        files.fsync(fd)
    except OSError:
        files.close(fd)
        files.unlink(temporary)
        raise
    files.close(fd)
    return temporary


def replace_file(files: Files, path: str, content: Buffer) -> None:
    """Replaces `path` durably. A power loss before the return leaves the whole old content or the whole new one."""
    files.rename(stage_file(files, path, content), path)
    files.fsync_dir(os.path.dirname(path))
