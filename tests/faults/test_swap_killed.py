"""kill -9 between any two operations on the disk while a log with transactions is cleaned twice: a start finds the old segments
or the new one, whole.

On the disk, a kill means that all earlier operations reached it and none follows. So the test kills no process: from the chosen
operation on every one is refused, by an exception that no handler takes for an error of the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from storage_tiers.files import Buffer, OsFiles
from tests.faults.test_power_loss_swap import SETTINGS, check, clean_transactions, promised, write_transactions
from tests.storage_tiers.hot.support import open_log

#: Operations that two cleanings make at least.
LEAST = 60


class Killed(BaseException):
    """The process is gone."""


class DyingFiles(OsFiles):
    """Lets `left` operations through, and none after them."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self._left = left

    def _spend(self) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        self._spend()
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._spend()
        return super().pwrite(fd, buffers, position)

    def fsync(self, fd: int) -> None:
        self._spend()
        super().fsync(fd)

    def fsync_dir(self, path: str) -> None:
        self._spend()
        super().fsync_dir(path)

    def rename(self, source: str, target: str) -> None:
        self._spend()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._spend()
        super().unlink(path)


def is_killed(root: Path, recovery_point: int, left: int) -> bool:
    """Whether the cleanings make more than `left` operations."""
    files = DyingFiles(left)
    try:
        log = open_log(root, settings=SETTINGS, recovery_point=recovery_point, files=files)
        clean_transactions(log, files)
    except Killed:
        return True
    return False


def test_no_kill_leaves_a_mixture_of_old_and_new_segments(tmp_path: Path) -> None:
    before, root = tmp_path / "before", tmp_path / "killed"
    before.mkdir()
    log = open_log(before, settings=SETTINGS)
    write_transactions(log)
    promise = promised(log)
    log.close(clean=False)
    left = 0
    while True:
        shutil.copytree(before, root)
        was_killed = is_killed(root, promise.end, left)
        assert check(root, promise) is None, f"killed after {left} operations"
        shutil.rmtree(root)
        if not was_killed:
            break
        left += 1
    assert left >= LEAST
