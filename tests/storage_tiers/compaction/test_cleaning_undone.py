"""A swap of cleaned segments that is given up, and cleanings that begin above transactions: no older value returns."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_tiers.compaction.clean_point import FILE_NAME, read_clean_point
from storage_tiers.errors import StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.records.builder import ControlKind
from tests.storage_tiers.compaction import support
from tests.storage_tiers.compaction.support import LATER_MS, batch, clean, closed, pairs, table, write
from tests.storage_tiers.hot.support import marker, open_log

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=100)


class CountedFiles(OsFiles):
    """Allows `left` renames, deletions and directory fsyncs and refuses all later ones; -1 allows all."""

    left = -1

    def _spend(self) -> None:
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.left -= 1

    def unlink(self, path: str) -> None:
        self._spend()
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        self._spend()
        super().rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self._spend()
        super().fsync_dir(path)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("is_decided", [False, True], ids=["being decided", "prepared"])
def test_a_swap_that_is_aborted_in_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, is_decided: bool
) -> None:
    files = CountedFiles()
    log = open_log(tmp_path, settings=SETTINGS, files=files)
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"))
    transaction(log, 7, 1, ControlKind.COMMIT, ("z", "1"))
    write(log, batch(("a", "1")))
    closed(log)
    for value in ("2", "3"):
        write(log, batch(("a", value), ("b", value)))
        closed(log)
    expected = table(log)

    def given_up(log: HotLog, new: object) -> bool:
        swap = log.swapping.begin(new)  # type: ignore[arg-type]
        assert swap is not None
        if is_decided:
            swap.prepare()
        files.left = steps
        try:
            swap.prepare()
            swap.end()
        except OSError:
            pass
        return True

    monkeypatch.setattr(support, "swap_in", given_up)
    clean(log)
    recovery_point = log.recovery_point
    log.close(clean=False)
    files.left = -1
    log = open_log(tmp_path, settings=SETTINGS, recovery_point=recovery_point)
    assert (log.cuts, log.end_offset, table(log)) == ((), 9, expected)
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]


def prepared(log: HotLog, monkeypatch: pytest.MonkeyPatch, *, swapped: bool = False) -> Path:
    """Cleans the log until a swap is prepared or, with `swapped`, renamed but not committed; returns the swap file."""

    def kept(log: HotLog, new: RewrittenSegment) -> bool:
        swap = log.swapping.begin(new)
        assert swap is not None
        swap.prepare()
        return log.swapping.finish(swap, new) if swapped else True

    monkeypatch.setattr(support, "swap_in", kept)
    clean(log)
    return Path(log.directory) / "00000000000000000000.swap"


def test_a_decision_without_its_new_files_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory was copied in the middle of a swap."""
    log = open_log(tmp_path, settings=SETTINGS)
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"))
    transaction(log, 7, 1, ControlKind.COMMIT, ("z", "1"))
    for value in ("2", "3"):
        write(log, batch(("a", value), ("b", value)))
        closed(log)
    expected = table(log)
    swap = prepared(log, monkeypatch)
    for name in os.listdir(log.directory):
        if name.endswith(".cleaned"):
            os.unlink(swap.with_name(name))
    recovery_point = log.recovery_point
    content = swap.read_bytes()
    log.swapping.swap = None  # a new process does not know the swap
    log.close(clean=False)
    swap.write_bytes(content)
    log = open_log(tmp_path, settings=SETTINGS, recovery_point=recovery_point)
    assert (log.cuts, log.end_offset, table(log)) == ((), 8, expected)
    assert not swap.exists()


def test_a_decision_that_comes_back_takes_no_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss may bring back the removed swap file beside a half-written file of the next cleaning."""
    log = open_log(tmp_path, settings=SETTINGS)
    for value in ("1", "2", "3"):
        write(log, batch(("a", value), ("b", value)))
        closed(log)
    swap = prepared(log, monkeypatch, swapped=True)
    recovery_point = log.recovery_point
    log.swapping.swap = None
    log.close(clean=False)
    assert swap.exists()
    swap.with_name("00000000000000000000.log.cleaned").write_bytes(b"")
    log = open_log(tmp_path, settings=SETTINGS, recovery_point=recovery_point)
    assert (log.cuts, pairs(log)) == ((), [(4, "a", "3"), (5, "b", "3")])
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap"))]


def transaction(log: HotLog, producer: int, sequence: int, kind: ControlKind, *pairs: tuple[str, str | None]) -> None:
    write(log, batch(*pairs, producer=(producer, 0, sequence), transactional=True), marker(kind, producer))


def test_a_transaction_that_was_aborted_below_the_dirty_part_hides_no_key_in_it(log: HotLog) -> None:
    """The producer's next transaction commits a tombstone, and the value under the tombstone must not outlive it."""
    write(log, batch(("a", "1")))
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"))
    closed(log)
    cleaned_to = clean(log)
    transaction(log, 7, 1, ControlKind.COMMIT, ("a", None))
    closed(log)
    assert table(log) == {}
    cleaned_to = clean(log, dirty_start=cleaned_to)
    assert [pair[0] for pair in pairs(log) if pair[1] == "a"] == [3]
    for _ in range(2):
        write(log, batch(("b", "1"), producer=(7, 0, 2)))
        closed(log)
        cleaned_to = clean(log, dirty_start=cleaned_to, now_ms=LATER_MS)
        assert b"a" not in table(log)


DAMAGED = [
    b"",
    b"[]",
    b"0",
    b'{"version":0}',
    b'{"version":0,"bases":[],"size":1,"offset":1e999,"segments":[],"suffixes":[]}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_clean_point_is_none_and_a_damaged_decision_is_named(tmp_path: Path, content: bytes) -> None:
    log = open_log(tmp_path, settings=SETTINGS)
    write(log, batch(("a", "1")))
    closed(log)
    log.close(clean=True)
    directory = Path(log.directory)
    (directory / FILE_NAME).write_bytes(content)
    assert read_clean_point(log.directory) is None
    (directory / "00000000000000000000.swap").write_bytes(content)
    with pytest.raises(StorageError, match=r"\.swap is damaged"):
        open_log(tmp_path, settings=SETTINGS, clean=True)


@pytest.fixture
def log(tmp_path: Path) -> HotLog:
    return open_log(tmp_path, settings=SETTINGS)
