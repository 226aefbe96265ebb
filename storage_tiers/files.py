"""The one module through which durable state is changed on disk.

Everything that must survive (log, indexes, checkpoints, metadata log, directory store, cached manifests) writes through a
`Files`, so that a test can record each operation, cut the run after any of them, and replay what a power loss may leave:
unsynced writes dropped or torn, unsynced renames, creations and unlinks undone. Reading needs no port: `os.pread`.

Rules a caller keeps: a file's bytes are durable after `fsync(fd)`, its name after `fsync_dir(parent)`; replacing a file
is write to a temporary name, fsync, rename, fsync_dir (`replace_file` does all four).

Descriptors may run out for a moment, through connections that nobody here counts. `DescriptorReserve` keeps some for what
must not fail then. Not promised: that it suffices; who is refused all the same tries again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Files(Protocol):
    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        """Read-write descriptor, close-on-exec. `exclusive` fails if the name exists."""

    def close(self, fd: int) -> None: ...

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Writes all buffers, gathered, at `position`; returns the bytes written. All or an OSError: after an error the
        file may hold a torn tail, which the caller truncates."""

    def truncate(self, fd: int, size: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Another name for a file; fails with FileExistsError if `target` exists (what rename cannot promise)."""

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Creates one directory; nothing if it is there."""

    def rmdir(self, path: str) -> None: ...

    def fsync_dir(self, path: str) -> None:
        """Opens the directory for it: an error of which `short_of_descriptors` is true is none of the fsync."""


def short_of_descriptors(error: OSError) -> bool:
    """Whether the process, or the machine, had no descriptor left: nothing was done then, and it may be tried again."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class DescriptorReserve:
    """At most `size` descriptors, parked until a file cannot be opened for want of one. Used by any thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        #: How often one was given up, or was missing.
        self.shortages = 0
        self._parked: list[int] = []

    @property
    def left(self) -> int:
        return len(self._parked)

    def fill(self) -> None:
        """Parks again what was given up, as far as there are descriptors."""
        try:
            while len(self._parked) < self.size:
                self._parked.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if not short_of_descriptors(error):
                raise

    def release_one(self) -> bool:
        """Frees one descriptor for who asks; False if none is parked."""
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
    """`reserve` is drawn on where a file or directory cannot be opened for want of a descriptor."""

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
        total = 0
        for buffer in buffers:
            total += len(buffer)
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
    """Writes and syncs `content` under the temporary name of `path`, and returns that name, for `rename` to finish."""
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
    """Replaces `path` so that after a power loss it holds the old content or the new, whole, and after the return the new."""
    files.rename(stage_file(files, path, content), path)
    files.fsync_dir(os.path.dirname(path))
