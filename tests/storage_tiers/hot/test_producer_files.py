"""The files of a log's producers, `.snapshot` and `.batches`: restarts with them, without them, and with wrong ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_tiers.errors import CorruptRecord, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot import layout, snapshots
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.snapshots import is_sound
from tests.storage_tiers.hot.support import append, batch_of, evict_below, open_log


def test_a_restart_knows_every_batch_that_a_producer_may_repeat(tmp_path: Path) -> None:
    """Seven batches of two producers, in a segment that was closed before the stop, and in the newest one."""
    for clean in (True, False):
        for rolled in (True, False):
            path = tmp_path / f"{clean}-{rolled}"
            path.mkdir()
            log = open_log(path)
            for number in range(14):
                append(log, batch_of(1, producer=(number % 2, 0, number // 2)))
                if number == 12 or (rolled and number == 13):
                    log.roll()
            log.flush()
            state = log.end.producers.state()
            log.close(clean=clean)
            again = open_log(path, clean=clean, recovery_point=log.recovery_point)
            assert again.end.producers.state() == state
            assert [each.batches[0].last_offset for each in again.end.producers.producers.values()] == [4, 5]


@pytest.mark.parametrize("content", [None, b"", b"123", b"\0" * 72])
def test_without_the_earlier_batches_a_restart_knows_the_newest_of_each_producer(
    tmp_path: Path, content: bytes | None
) -> None:
    log = open_log(tmp_path)
    for number in range(7):
        append(log, batch_of(1, producer=(7, 0, number)))
    log.close(clean=True)
    path = Path(log.directory, f"{7:020d}.batches")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    producers = open_log(tmp_path, clean=True).end.producers
    assert [each.last_offset for each in producers.producers[7].batches] == [6]


def test_earlier_batches_that_cannot_be_read_are_done_without(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(7):
        append(log, batch_of(1, producer=(7, 0, number)))
    log.close(clean=True)
    path = Path(log.directory, f"{7:020d}.batches")
    path.unlink()
    path.mkdir()
    producers = open_log(tmp_path, clean=True).end.producers
    assert [each.last_offset for each in producers.producers[7].batches] == [6]


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_of_a_later_offset_is_not_believed(tmp_path: Path, clean: bool) -> None:
    """The directory was put together from copies. With the snapshot, a batch that was lost would count as stored."""
    log = open_log(tmp_path)
    for number in range(9):
        append(log, batch_of(1, producer=(7, 0, number)))
        if number in (2, 5):
            log.roll()
    log.flush()
    log.close(clean=clean)
    newest = Path(log.directory, f"{6:020d}.log")
    for suffix in (".snapshot", ".batches"):
        later = newest.with_suffix(suffix).read_bytes()
        Path(log.directory, f"{3:020d}{suffix}").write_bytes(later)
    again = open_log(tmp_path, clean=clean, recovery_point=9)
    assert [each.last_offset for each in again.reader.producers_at(3).producers[7].batches] == [0, 1, 2]
    again.truncate_to(4)
    assert [each.last_offset for each in again.end.producers.producers[7].batches] == [0, 1, 2, 3]


def test_a_flush_that_the_disk_refuses_halfway_leaves_no_snapshot_behind_a_discarded_log(tmp_path: Path) -> None:
    """The next start would take the snapshot for the state of the new log, and repeated batches for stored ones."""

    class Full(OsFiles):
        def open(self, path: str, *, create: bool = False, exclusive: bool = False, truncate: bool = False) -> int:
            if path.endswith(layout.OFFSET_INDEX):
                raise OSError(errno.ENOSPC, "no space")
            return super().open(path, create=create, exclusive=exclusive, truncate=truncate)

    for cut, offset in ((HotLog.truncate_to, 2), (HotLog.truncate_fully_and_start_at, 20)):
        path = tmp_path / cut.__name__
        path.mkdir()
        log = open_log(path, files=Full())
        for number in range(6):
            append(log, batch_of(1, producer=(7, 0, number)))
        log.roll()
        log.flush()
        assert Path(log.directory, f"{6:020d}.snapshot").exists()
        cut(log, offset)
        assert not [each for each in os.listdir(log.directory) if each.startswith(f"{6:020d}")]


def test_earlier_batches_are_removed_with_their_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(12):
        append(log, batch_of(1, producer=(7, 0, number)))
        if number % 4 == 3:
            log.roll()
    log.flush()

    def kept() -> list[int]:
        return sorted(int(path.stem) for path in Path(log.directory).glob("*.batches"))

    assert kept() == [4, 8, 12]
    assert evict_below(log, 8) == 2
    assert kept() == [8, 12]
    log.truncate_to(10)
    assert kept() == [8]
    log.truncate_fully_and_start_at(20)
    assert kept() == [20]


def test_a_log_does_not_begin_with_the_producers_of_a_later_offset(tmp_path: Path) -> None:
    (tmp_path / "donor").mkdir()
    donor, log = open_log(tmp_path / "donor"), open_log(tmp_path)
    for number in range(3):
        append(donor, batch_of(1, producer=(7, 0, number)))
    append(log, batch_of(1))
    state = donor.end.producers.state()
    with pytest.raises(CorruptRecord, match="later offset than 2"):
        log.truncate_fully_and_start_at(2, producer_state=state)
    assert log.end_offset == 1, "nothing is discarded"
    log.truncate_fully_and_start_at(3, producer_state=state)
    assert log.end_offset == 3


def test_a_snapshot_of_the_next_offset_is_not_sound(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        append(log, batch_of(1, producer=(7, 0, number)))
    log.close(clean=True)
    paths = (f"{log.directory}/{3:020d}.snapshot", f"{log.directory}/{3:020d}.batches")
    assert [is_sound(*paths, offset) for offset in (2, 3, 4)] == [False, True, True]


@pytest.mark.parametrize("refused", [".snapshot", ".batches"])
def test_a_lack_of_descriptors_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """The files may be intact, so a start must not go without them."""
    log = open_log(tmp_path)
    for number in range(7):
        append(log, batch_of(1, producer=(7, 0, number)))
    log.close(clean=True)
    content = snapshots._content

    def short(path: str, default: bytes | None = None) -> bytes:
        if path.endswith(refused):
            raise OSError(errno.EMFILE, "too many open files")
        return content(path, default)

    monkeypatch.setattr(snapshots, "_content", short)
    with pytest.raises((OSError, StorageError), match="too many open files"):
        open_log(tmp_path, clean=True)
    with pytest.raises(OSError, match="too many open files"):
        is_sound(f"{log.directory}/{7:020d}.snapshot", f"{log.directory}/{7:020d}.batches", 7)
