"""After a failed fsync, cached pages look clean but are not on the disk: the next start makes all that it reads durable in a
new file, before it reports any of it as durable."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.hot import sync_failure
from storage_tiers.hot.settings import LogSettings
from tests.storage_tiers.hot.support import append, batch_of, open_log, read_all

PAGE = 512


class Disk(OsFiles):
    """A disk under a page cache. A failed fsync leaves the pages in the cache, marked clean: they are never written again.
    `platter` holds, by inode, the bytes that survive a power loss."""

    def __init__(self) -> None:
        self.fails = False
        self.platter: dict[int, bytearray] = defaultdict(bytearray)
        self._dirty: dict[int, set[int]] = defaultdict(set)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        written = super().pwrite(fd, buffers, position)
        self._dirty[os.fstat(fd).st_ino] |= set(range(position // PAGE, (position + written - 1) // PAGE + 1))
        return written

    def fsync(self, fd: int) -> None:
        status = os.fstat(fd)
        dirty, disk = self._dirty.pop(status.st_ino, set()), self.platter[status.st_ino]
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        disk.extend(bytes(max(0, status.st_size - len(disk))))
        del disk[status.st_size :]
        for page in dirty:
            data = os.pread(fd, PAGE, page * PAGE)
            disk[page * PAGE : page * PAGE + len(data)] = data

    def power_loss(self, root: Path) -> None:
        """Drops the cache. Directory entries count as durable, because these tests cover only file content."""
        for path in root.rglob("*.log"):
            path.write_bytes(self.platter[path.stat().st_ino])


def count(content: bytes) -> int:
    return content.count(b"v" * 40)


def one() -> bytes:
    return batch_of(1, value=b"v" * 40)


@pytest.mark.parametrize("segment_bytes", [300, 1 << 20])
@pytest.mark.parametrize("starts", [1, 2])
def test_records_flushed_after_the_restart_are_on_disk(tmp_path: Path, segment_bytes: int, starts: int) -> None:
    disk, settings = Disk(), LogSettings(segment_bytes=segment_bytes)
    log = open_log(tmp_path, files=disk, settings=settings)
    for _ in range(3):
        append(log, one())
    log.flush()
    for _ in range(4):
        append(log, one())
    disk.fails = True
    with pytest.raises(StorageError, match="restart the node"):
        log.flush()
    disk.fails = False
    with pytest.raises(StorageError):
        log.close(clean=True)
    for _ in range(starts):
        log = open_log(tmp_path, files=disk, settings=settings, recovery_point=3)
        assert count(read_all(log)) == 7
        log.flush()
        log.close(clean=False)
    log = open_log(tmp_path, files=disk, settings=settings, recovery_point=3)
    append(log, one())
    log.flush()
    assert log.recovery_point == 8
    log.close(clean=False)
    disk.power_loss(tmp_path)
    log = open_log(tmp_path, files=disk, settings=settings, recovery_point=8)
    assert log.cuts == ()
    assert count(read_all(log)) == 8
    assert sync_failure.FILE_NAME not in os.listdir(log.directory)
    log.close(clean=False)


def test_a_failure_of_an_earlier_boot_needs_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reboot empties the page cache, so that everything read comes from the disk."""
    disk = Disk()
    log = open_log(tmp_path, files=disk)
    append(log, one())
    disk.fails = True
    with pytest.raises(StorageError):
        log.flush()
    disk.fails = False
    log.close(clean=False)
    segment = Path(log.directory) / f"{0:020d}.log"
    before = segment.stat().st_ino
    monkeypatch.setattr(sync_failure, "boot_id", lambda: "another boot")
    log = open_log(tmp_path, files=disk)
    assert segment.stat().st_ino == before
    assert sync_failure.FILE_NAME not in os.listdir(log.directory)
    log.close(clean=False)


def test_a_copy_that_cannot_be_made_is_made_at_the_next_start(tmp_path: Path) -> None:
    disk = Disk()
    log = open_log(tmp_path, files=disk)
    append(log, one())
    disk.fails = True
    with pytest.raises(StorageError):
        log.flush()
    log.close(clean=False)
    with pytest.raises(StorageError, match="unsynced part cannot be copied"):
        open_log(tmp_path, files=disk)
    disk.fails = False
    log = open_log(tmp_path, files=disk)
    assert count(read_all(log)) == 1
    log.close(clean=False)
    disk.power_loss(tmp_path)
    log = open_log(tmp_path, files=disk)
    assert count(read_all(log)) == 1
    log.close(clean=False)
