"""Disks for the tests of the metadata log: the real file system, which counts its calls and fails on request."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Sequence

from storage_tiers.files import Buffer, OsFiles


class TroubledFiles(OsFiles):
    """The real file system, except that the next `fail[operation]` calls of an operation raise, and that fsync waits while
    `hold` is clear.

    A refused write leaves half of its bytes behind, as a disk does when it fills up.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fail: Counter[str] = Counter()
        self.hold = threading.Event()
        self.hold.set()

    def _called(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.fail[operation] > 0:
            self.fail[operation] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        self._called("create" if create else "open")
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        try:
            self._called("pwrite")
        except OSError:
            whole = b"".join(buffers)
            super().pwrite(fd, (whole[: len(whole) // 2],), position)
            raise
        return super().pwrite(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        self._called("truncate")
        super().truncate(fd, size)

    def fsync(self, fd: int) -> None:
        assert self.hold.wait(30)
        self._called("fsync")
        super().fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._called("fsync_dir")
        super().fsync_dir(path)

    def rename(self, source: str, target: str) -> None:
        self._called("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._called("unlink")
        super().unlink(path)
