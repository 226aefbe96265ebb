"""Flushing during appends: what a flush covers, what a truncation undoes, and what a failing disk leaves."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.hot.settings import LogSettings
from tests.storage_tiers.hot.support import append, batch_of, open_log, placed, read_all

SMALL = LogSettings(segment_bytes=1000, index_interval_bytes=200)


class StubbornFiles(OsFiles):
    """Counts fsyncs, fails the calls named in `failing`, and lets a test pause inside an fsync."""

    def __init__(self) -> None:
        self.fsyncs = 0
        self.failing: set[str] = set()
        self.inside = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def _fail(self, call: str) -> None:
        if call in self.failing:
            raise OSError(errno.EIO, f"{call} refused")

    def fsync(self, fd: int) -> None:
        self.inside.set()
        self.may_go.wait(60)
        self._fail("fsync")
        self.fsyncs += 1
        super().fsync(fd)

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if "pwrite" in self.failing:
            super().pwrite(fd, (b"".join(map(bytes, buffers))[:30],), position)
        self._fail("pwrite")
        return super().pwrite(fd, buffers, position)

    def truncate(self, fd: int, size: int) -> None:
        self._fail("truncate")
        super().truncate(fd, size)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
        if path.endswith((".tmp", ".log")) and create:
            self._fail("create" + os.path.splitext(path)[1])
        return super().open(path, create=create, exclusive=exclusive, truncate=truncate)


def test_one_fsync_covers_every_append_before_it(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files)
    log.flush()
    before = files.fsyncs
    for _ in range(50):
        append(log, batch_of(1))
    assert log.unflushed_records == 50
    targets = log.begin_flush()
    append(log, batch_of(1))
    targets.sync()
    assert log.recovery_point == 0
    assert log.finish_flush(targets) == 50
    assert files.fsyncs == before + 1
    assert log.unflushed_records == 1
    log.flush(upto=50)
    assert files.fsyncs == before + 1
    log.flush(upto=51)
    assert files.fsyncs == before + 2


def test_a_flush_in_a_thread_beside_appends_and_rolls(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files, settings=SMALL)
    content = [placed(batch_of(2), append(log, batch_of(2)), 0) for _ in range(20)]
    files.may_go.clear()
    targets = log.begin_flush()
    thread = threading.Thread(target=targets.sync)
    thread.start()
    assert files.inside.wait(60)
    content += [placed(batch_of(2), append(log, batch_of(2)), 0) for _ in range(20)]
    files.may_go.set()
    thread.join()
    assert log.finish_flush(targets) == 40
    assert log.finish_flush(targets) == 40  # a second call does no harm
    log.flush()
    log.close(clean=False)
    again = open_log(tmp_path, settings=SMALL, recovery_point=log.recovery_point)
    assert read_all(again) == b"".join(content)


def test_a_truncation_waits_for_the_sync_and_uses_its_results(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files, settings=SMALL)
    for _ in range(30):
        append(log, batch_of(2))
    files.may_go.clear()
    targets = log.begin_flush()
    thread = threading.Thread(target=targets.sync)
    thread.start()
    assert files.inside.wait(60)
    threading.Timer(0.05, files.may_go.set).start()
    log.truncate_to(11)
    thread.join()
    assert (log.end_offset, log.recovery_point) == (10, 10)
    assert log.finish_flush(targets) == 10
    assert append(log, batch_of(1), epoch=1) == 10
    log.flush()
    log.close(clean=False)
    again = open_log(tmp_path, settings=SMALL, recovery_point=11)
    assert again.end_offset == 11 and again.end.epochs.latest == 1


def test_a_truncation_voids_a_flush_that_has_not_begun(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SMALL)
    for _ in range(30):
        append(log, batch_of(2))
    targets = log.begin_flush()
    log.truncate_to(10)
    targets.sync()
    assert log.finish_flush(targets) == 0
    assert not [name for name in os.listdir(log.directory) if name.endswith(".index")]


def test_a_failed_fsync_raises_and_moves_nothing(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files)
    append(log, batch_of(1))
    files.failing = {"fsync"}
    targets = log.begin_flush()
    with pytest.raises(OSError, match="refused"):
        targets.sync()
    with pytest.raises(StorageError, match="restart the node"):
        log.flush()
    with pytest.raises(StorageError):
        log.close(clean=True)
    assert log.recovery_point == 0


def test_a_later_fsync_does_not_make_up_for_a_failed_one(tmp_path: Path) -> None:
    """The kernel may have dropped the pages and forgotten the error: the next fsync succeeds and proves nothing."""
    files = StubbornFiles()
    log = open_log(tmp_path, files=files)
    append(log, batch_of(1))
    files.failing = {"fsync"}
    targets = log.begin_flush()
    with pytest.raises(OSError, match="refused"):
        targets.sync()
    log.finish_flush(targets)
    files.failing = set()
    with pytest.raises(StorageError, match="restart the node"):
        log.begin_flush()
    with pytest.raises(StorageError, match="restart the node"):
        log.flush()
    with pytest.raises(StorageError, match="restart the node"):
        log.close(clean=True)
    assert log.recovery_point == 0


def test_indexes_that_cannot_be_written_do_not_hold_the_log_up(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files, settings=SMALL)
    content = [placed(batch_of(2), append(log, batch_of(2)), 0) for _ in range(20)]
    files.failing = {"create.tmp"}
    log.flush()
    assert log.recovery_point == 40
    assert not [name for name in os.listdir(log.directory) if name.endswith((".index", ".tmp"))]
    with pytest.raises(StorageError, match="next start recovers"):
        log.close(clean=True)
    log = open_log(tmp_path, settings=SMALL, recovery_point=40)
    assert read_all(log) == b"".join(content) and log.cuts == ()
    log.flush()
    assert len([name for name in os.listdir(log.directory) if name.endswith(".index")]) == len(log.segments()) - 1


@pytest.mark.parametrize("failing", [{"pwrite"}, {"pwrite", "truncate"}])
def test_a_refused_append_leaves_the_log_unchanged(tmp_path: Path, failing: set[str]) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files)
    content = [placed(batch_of(2), append(log, batch_of(2), epoch=1), 1) for _ in range(3)]
    files.failing = failing
    for _ in range(2):
        with pytest.raises(StorageError, match=r"refused an append|cannot append"):
            append(log, batch_of(2, producer=(9, 0, 0)), epoch=2)
        assert read_all(log) == b"".join(content)
    with pytest.raises(StorageError):
        log.appender.append_as_follower(memoryview(placed(batch_of(1), 6, 2)))
    assert (log.end_offset, log.end.epochs.latest, log.end.producers.producers) == (6, 1, {})
    files.failing = set()
    content.append(placed(batch_of(1), append(log, batch_of(1), epoch=2), 2))
    assert read_all(log) == b"".join(content)
    assert log.size_bytes == os.path.getsize(log.segments()[0].path)


def test_a_roll_that_is_refused_can_be_repeated(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files, settings=SMALL)
    appended = 0
    files.failing = {"create.log"}
    with pytest.raises(StorageError, match="cannot begin a segment"):
        for _ in range(50):
            append(log, batch_of(1))
            appended += 1
    assert log.end_offset == appended and len(log.segments()) == 1
    files.failing = set()
    assert append(log, batch_of(1)) == appended
    assert len(log.segments()) == 2


def test_a_log_that_could_not_start_over_is_empty_until_it_can(tmp_path: Path) -> None:
    files = StubbornFiles()
    log = open_log(tmp_path, files=files, settings=SMALL)
    for _ in range(30):
        append(log, batch_of(2))
    for failing in ("create.tmp", "create.log"):
        files.failing = {failing}
        with pytest.raises(StorageError, match="start over"):
            log.truncate_fully_and_start_at(100)
        assert (log.local_start_offset, log.end_offset, log.size_bytes) == (0, 0, 0)
        assert [segment.end for segment in log.segments()] == [0]
        with pytest.raises(StorageError):
            append(log, batch_of(1))
    files.failing = set()
    log.truncate_fully_and_start_at(100)
    assert append(log, batch_of(1)) == 100
    log.close(clean=True)
    assert open_log(tmp_path, settings=SMALL, log_start_offset=100, clean=True).end_offset == 101
