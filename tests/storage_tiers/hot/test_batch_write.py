"""A batch that a thread writes past the log end: part of the log once finished, and discarded otherwise."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from storage_tiers.errors import RecordBatchTooLarge, StorageError
from storage_tiers.files import Buffer, OsFiles
from storage_tiers.hot import batch_write
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.indexes import MAX_RELATIVE_OFFSET
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import HEADER_BYTES, read_header
from tests.storage_tiers.hot.support import START_MS, append, batch_of, open_log, placed, read_all

SETTINGS = LogSettings(segment_bytes=8 << 20, max_message_bytes=8 << 20)
SMALL = batch_of(1)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A batch that is written in several pieces."""
    monkeypatch.setattr(batch_write, "PIECE_BYTES", 64 << 10)
    return batch_of(2, value=os.urandom(200 << 10))


def begin(log: HotLog, batch: bytes) -> BatchWrite:
    return log.appender.begin_write(memoryview(batch), read_header(batch), now_ms=START_MS)


def run(write: BatchWrite) -> BatchWrite:
    write.run()
    return write


def finish(log: HotLog, write: BatchWrite, batch: bytes, epoch: int = 0) -> int:
    return log.appender.finish_write(write, memoryview(batch), read_header(batch), leader_epoch=epoch, now_ms=START_MS)


def ends_where_it_says(log: HotLog) -> bool:
    return all(os.path.getsize(segment.path) == segment.size_bytes for segment in log.segments())


@pytest.mark.parametrize("before", [0, 1])
def test_written_batches_are_appended(before: int, large: bytes, tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    content = [placed(SMALL, append(log, SMALL), 0) for _ in range(before)]
    write = begin(log, large)
    assert read_all(log) == b"".join(content)
    write.run()
    assert read_all(log) == b"".join(content)
    content.append(placed(large, finish(log, write, large, epoch=7), 7))
    content.append(placed(SMALL, append(log, SMALL, epoch=7), 7))
    assert read_all(log) == b"".join(content)
    assert ends_where_it_says(log)
    log.close(clean=False)
    assert write.file.fd == -1, "its descriptor is closed"
    assert read_all(open_log(tmp_path, settings=SETTINGS, clean=False)) == b"".join(content)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("is_run", [False, True])
def test_an_unfinished_write_is_gone_after_a_kill(is_run: bool, before: int, large: bytes, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    log = open_log(tmp_path / "live", settings=SETTINGS)
    content = b"".join(placed(SMALL, append(log, SMALL), 0) for _ in range(before))
    write = begin(log, large)
    if is_run:
        write.run()
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    killed = open_log(tmp_path / "killed", settings=SETTINGS, clean=False)
    assert killed.end_offset == before
    assert read_all(killed) == content
    append(killed, SMALL)
    assert ends_where_it_says(killed)


CHANGES: dict[str, Callable[[HotLog], object]] = {
    "an append": lambda log: append(log, SMALL),
    "another write": lambda log: finish(log, run(begin(log, SMALL)), SMALL),
    "a roll": lambda log: log.roll(),
    "a truncation": lambda log: log.truncate_to(1),
    "a new beginning": lambda log: log.truncate_fully_and_start_at(50),
    "a follower's append": lambda log: log.appender.append_as_follower(memoryview(placed(SMALL, 2, 0))),
    "giving it up": lambda log: log.appender.stop_write(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before it is run", "after it is run"])
def test_any_change_of_the_log_stops_a_write(change: str, when: str, large: bytes, tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    append(log, SMALL), append(log, SMALL)
    write = begin(log, large)
    assert log.appender.is_writing(write)
    if when == "after it is run":
        write.run()
    CHANGES[change](log)
    assert not log.appender.is_writing(write)
    write.run()  # the thread runs late, and writes nothing
    assert ends_where_it_says(log)
    end = log.end_offset
    assert append(log, large) == end
    assert read_all(log, start=end) == placed(large, end, 0)
    assert ends_where_it_says(log)


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_log_that_is_closed_keeps_nothing_of_an_unfinished_write(
    is_clean: bool, large: bytes, tmp_path: Path
) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    append(log, SMALL)
    path, write = log.segments()[0].path, begin(log, large)
    write.run()
    log.close(clean=is_clean)
    assert os.path.getsize(path) == len(SMALL)
    assert write.file.fd == -1, "its descriptor is closed"
    assert read_all(open_log(tmp_path, settings=SETTINGS, clean=is_clean)) == placed(SMALL, 0, 0)


class HeldFiles(OsFiles):
    """A disk that blocks a thread's writes until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.goes_on = threading.Event(), threading.Event()
        self.writes = 0

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.writes += 1
            self.entered.set()
            assert self.goes_on.wait(30)
        return super().pwrite(fd, buffers, position)


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_waits_for_the_piece_that_a_thread_writes(change: str, large: bytes, tmp_path: Path) -> None:
    """Otherwise the piece would end up past the log end, in a closed segment, or in a renamed file."""
    files = HeldFiles()
    log = open_log(tmp_path, settings=SETTINGS, files=files)
    append(log, SMALL), append(log, SMALL)
    write = begin(log, large)
    thread = threading.Thread(target=write.run)
    thread.start()
    assert files.entered.wait(30)
    threading.Timer(0.05, files.goes_on.set).start()
    CHANGES[change](log)
    assert files.goes_on.is_set()
    assert ends_where_it_says(log)
    thread.join()
    assert files.writes == 1, "no further piece"
    assert ends_where_it_says(log)


class FullFiles(OsFiles):
    full = False

    def pwrite(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.full:
            super().pwrite(fd, (b"torn",), position)
            raise OSError(errno.ENOSPC, "no space")
        return super().pwrite(fd, buffers, position)


@pytest.mark.parametrize("fails", ["the body", "the head"])
def test_a_refusing_disk_leaves_the_log_unchanged(fails: str, large: bytes, tmp_path: Path) -> None:
    files = FullFiles()
    log = open_log(tmp_path, settings=SETTINGS, files=files)
    append(log, SMALL)
    write = begin(log, large)
    files.full = fails == "the body"
    write.run()
    files.full = fails == "the head"
    with pytest.raises(StorageError, match="refused an append"):
        finish(log, write, large)
    files.full = False
    assert log.end_offset == 1
    assert ends_where_it_says(log)
    assert append(log, large) == 1
    assert read_all(log) == placed(SMALL, 0, 0) + placed(large, 1, 0)


class StuckFiles(FullFiles):
    """A full disk that also fails the next `stuck` truncations."""

    stuck = 0

    def truncate(self, fd: int, size: int) -> None:
        if self.stuck:
            self.stuck -= 1
            raise OSError(errno.EIO, "cannot cut")
        super().truncate(fd, size)


@pytest.mark.parametrize("of", ["a write", "an append"])
@pytest.mark.parametrize("then", ["a roll", "a clean stop"])
def test_bytes_that_could_not_be_truncated_are_truncated_before_a_segment_is_closed(
    of: str, then: str, large: bytes, tmp_path: Path
) -> None:
    """Otherwise recovery would cut these bytes and every later segment, and readers would find no batch there."""
    files = StuckFiles()
    log = open_log(tmp_path, settings=SETTINGS, files=files)
    append(log, SMALL)
    files.stuck = 1
    if of == "a write":
        run(begin(log, large))
        with pytest.raises(StorageError, match="cannot cut"):
            log.appender.stop_write()
    else:
        files.full = True
        with pytest.raises(StorageError, match="refused an append"):
            append(log, SMALL)
        files.full = False
    assert not ends_where_it_says(log)
    if then == "a roll":
        log.roll()
        assert ends_where_it_says(log)
        append(log, SMALL)
        log.close(clean=False)
        assert read_all(open_log(tmp_path, settings=SETTINGS)) == placed(SMALL, 0, 0) + placed(SMALL, 1, 0)
    else:
        path = log.segments()[0].path
        log.close(clean=True)
        assert os.path.getsize(path) == len(SMALL)
        assert read_all(open_log(tmp_path, settings=SETTINGS, clean=True)) == placed(SMALL, 0, 0)


def test_an_append_is_refused_if_the_beginning_of_its_segment_cannot_be_read(
    large: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    append(log, large), append(log, large)
    log.close(clean=True)
    read = os.pread

    def refuses(fd: int, size: int, position: int) -> bytes:
        if (size, position) == (HEADER_BYTES, 0):
            raise OSError(errno.EIO, "cannot read")
        return read(fd, size, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", refuses)
        log = open_log(tmp_path, settings=SETTINGS, clean=True)
        for appending in (begin, append):
            with pytest.raises(StorageError, match="cannot append"):
                appending(log, large)
    assert append(log, SMALL) == 4


def test_a_full_segment_is_rolled_before_the_write(large: bytes, tmp_path: Path) -> None:
    settings = replace(SETTINGS, segment_bytes=len(large) + len(SMALL))
    log = open_log(tmp_path, settings=settings)
    for number in range(3):
        assert finish(log, run(begin(log, large)), large) == 2 * number
    assert [segment.base for segment in log.segments()] == [0, 2, 4]
    with pytest.raises(RecordBatchTooLarge, match="fits no segment"):
        begin(log, batch_of(1, value=bytes(2 * len(large))))
    assert log.end_offset == 6
    assert append(log, SMALL) == 6


ROLLS: dict[str, tuple[bytes, bytes, int]] = {
    "its timestamp": (SMALL, batch_of(1, timestamps=[START_MS + 2000]), START_MS),
    "the clock, without timestamps": (batch_of(1, timestamps=[-1]), SMALL, START_MS + 2000),
    "its last offset": (placed(SMALL, MAX_RELATIVE_OFFSET, 0), SMALL, START_MS),
}


@pytest.mark.parametrize("why", ROLLS)
def test_a_segment_is_rolled_before_a_write_as_before_an_append(why: str, tmp_path: Path) -> None:
    first, batch, now_ms = ROLLS[why]
    log = open_log(tmp_path, settings=replace(SETTINGS, segment_ms=1000))
    log.appender.append_as_follower(memoryview(first))
    end = log.end_offset
    run(log.appender.begin_write(memoryview(batch), read_header(batch), now_ms=now_ms))
    assert [segment.base for segment in log.segments()] == [0, end]


def test_changed_configs_bind_the_next_append(large: bytes, tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    append(log, SMALL)
    write = run(begin(log, large))
    log.reconfigure(replace(SETTINGS, segment_bytes=len(large)))
    assert finish(log, write, large) == 1
    assert append(log, SMALL) == 3
    assert [segment.base for segment in log.segments()] == [0, 3]


def test_a_written_batch_makes_its_producer_known(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    batch = batch_of(2, producer=(5, 0, 0))
    finish(log, run(begin(log, batch)), batch)
    known = log.end.producers.check(read_header(batch), now_ms=START_MS)
    assert known is not None and known.base_offset == 0
