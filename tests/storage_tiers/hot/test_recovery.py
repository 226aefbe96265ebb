"""Restarts: after a clean stop nothing is read; after a crash the untrusted part is read and cut where it is damaged."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_tiers.errors import StorageError
from storage_tiers.hot import layout, leader_epochs
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import HEADER_BYTES, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import EpochEntry
from tests.storage_tiers.hot.support import START_MS, append, batch_of, marker, open_log, placed, read_all
from tests.support.clock import ManualClock

SMALL = LogSettings(segment_bytes=2000, index_interval_bytes=300)


def filled(path: Path, count: int = 60, *, flush_at: int | None = None) -> tuple[HotLog, list[bytes]]:
    """A log of `count` batches of two records, flushed after `flush_at` of them."""
    log, content = open_log(path, settings=SMALL), []
    for number in range(count):
        batch = batch_of(
            2, value=b"%03d" % number, timestamps=[START_MS + number, START_MS], producer=(9, 0, 2 * number)
        )
        content.append(placed(batch, append(log, batch, epoch=number // 20), number // 20))
        if number + 1 == flush_at:
            log.flush()
    return log, content


def reopen(path: Path, log: HotLog, *, clean: bool = False, recovery_point: int | None = None) -> HotLog:
    log.close(clean=clean)
    point = log.recovery_point if recovery_point is None else recovery_point
    return open_log(path, settings=SMALL, clean=clean, recovery_point=point)


def log_files(log: HotLog) -> list[str]:
    return sorted(os.path.join(log.directory, name) for name in os.listdir(log.directory) if name.endswith(".log"))


def patch(path: str, position: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(content)


# --- restarts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("flush_at", [None, 30, 60])
def test_everything_is_back(tmp_path: Path, clean: bool, flush_at: int | None) -> None:
    log, content = filled(tmp_path, flush_at=flush_at)
    again = reopen(tmp_path, log, clean=clean)
    assert again.cuts == ()
    assert read_all(again) == b"".join(content)
    assert again.end_offset == 120
    assert again.end.epochs.entries() == (EpochEntry(0, 0), EpochEntry(1, 40), EpochEntry(2, 80))
    assert again.end.producers.snapshot() == log.end.producers.snapshot()
    assert [(s.base, s.end, s.max_timestamp) for s in again.segments()] == [
        (s.base, s.end, s.max_timestamp) for s in log.segments()
    ]
    batch = batch_of(2, producer=(9, 0, 120))
    assert again.end.producers.check(read_header(batch), now_ms=START_MS) is None
    assert append(again, batch, epoch=3) == 120


def test_a_clean_stop_is_everything_durable(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    again = reopen(tmp_path, log, clean=True)
    assert again.recovery_point == again.end_offset == 120
    assert again.unflushed_records == 0
    names = {name for name in os.listdir(log.directory) if name[0].isdigit()}
    bases = {name.split(".")[0] for name in names}
    assert names >= {
        base + suffix for base in bases for suffix in (".log", ".index", ".timeindex") if base != f"{120:020d}"
    }


def test_stopping_clean_twice_changes_nothing(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    log = reopen(tmp_path, log, clean=True)
    before = {entry.name: entry.stat().st_ino for entry in os.scandir(log.directory)}
    log = reopen(tmp_path, log, clean=True)
    log.close(clean=True)
    assert {entry.name: entry.stat().st_ino for entry in os.scandir(log.directory)} == before


def test_after_a_crash_only_bytes_behind_the_recovery_point_are_read(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, flush_at=60)
    point = log.recovery_point
    # Damage in a trusted segment goes unnoticed: fsck finds it, start-up does not look.
    patch(log_files(log)[0], 70, b"\xff")
    again = reopen(tmp_path, log)
    assert again.cuts == () and again.end_offset == point
    assert again.recovery_point == again.segments()[-1].base
    # Without a recovery point everything is read.
    again = reopen(tmp_path, again, recovery_point=0)
    assert again.end_offset == 0 and "CRC" in again.cuts[0]


def test_a_log_of_an_earlier_start_is_continued(tmp_path: Path) -> None:
    log, content = filled(tmp_path)
    for start in range(6):
        log = reopen(tmp_path, log, clean=start % 2 == 0)
        batch = batch_of(1, timestamps=[START_MS + 1000 + start])
        content.append(placed(batch, append(log, batch, epoch=5 + start), 5 + start))
        assert read_all(log) == b"".join(content)
        assert log.offset_for_timestamp(START_MS + 1000 + start) == (START_MS + 1000 + start, 120 + start, 5 + start)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("first", "begun", "expected"),
    [
        (START_MS + 10, START_MS, START_MS + 10),
        (START_MS - 500, START_MS, START_MS),
        (START_MS + 9000, START_MS, START_MS + 5000),
        (-1, START_MS, START_MS + 5000),
    ],
    ids=["its first record's", "an old record", "a record from the future", "without a timestamp"],
)
def test_the_newest_segment_is_dated_by_its_first_record(
    tmp_path: Path, clean: bool, first: int, begun: int, expected: int
) -> None:
    """Otherwise the active segment of a node that crashes often would look young after each start, and never be offloaded."""
    log = open_log(tmp_path, settings=SMALL)
    append(log, batch_of(1, timestamps=[START_MS]))
    log.roll()
    append(log, batch_of(1, timestamps=[first]))
    append(log, batch_of(1, timestamps=[START_MS + 4000]))
    log.flush()
    log.close(clean=clean)
    stem = log.segments()[-1].path.removesuffix(layout.LOG)
    for suffix, changed_ms in ((layout.LOG, START_MS + 5000), (layout.SNAPSHOT, begun)):
        os.utime(stem + suffix, ns=(changed_ms * 10**6, changed_ms * 10**6))
    later = ManualClock(START_MS + 20_000)
    again = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point, clock=later)
    assert again.segments()[-1].first_append_ms == expected


# --- cuts -------------------------------------------------------------------------------------------------------------
def crc_of_header(batch: bytearray) -> None:
    batch[HEADER_BYTES + 3] ^= 0x40


def no_magic(batch: bytearray) -> None:
    batch[16] = 1


def absurd_length(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, 1 << 30)


def negative_length(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, -5)


def offset_too_low(batch: bytearray) -> None:
    struct.pack_into(">q", batch, 0, read_header(batch).base_offset - 1)


def epoch_too_low(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 12, 0)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (crc_of_header, "CRC-32C"),
        (no_magic, "message format"),
        (absurd_length, "not whole"),
        (negative_length, "length"),
        (offset_too_low, "offset is below"),
        (epoch_too_low, "leader epoch is below"),
    ],
)
@pytest.mark.parametrize("number", [45, 58])
def test_the_log_is_cut_at_the_first_bad_batch(
    tmp_path: Path, damage: Callable[[bytearray], None], why: str, number: int
) -> None:
    log, content = filled(tmp_path)
    batch = bytearray(content[number])
    damage(batch)
    path = next(each for each in reversed(log_files(log)) if int(os.path.basename(each)[:20]) <= 2 * number)
    with open(path, "rb") as file:
        position = file.read().index(content[number])
    patch(path, position, bytes(batch))
    again = reopen(tmp_path, log)
    assert why in again.cuts[0] and f"offset {2 * number}" in again.cuts[0]
    assert again.end_offset == 2 * number
    assert read_all(again) == b"".join(content[:number])
    assert os.path.getsize(path) == position
    assert log_files(again)[-1] == path
    assert [entry.epoch for entry in again.end.epochs.entries()] == [0, 1, 2][: (number - 1) // 20 + 1]
    assert again.offset_for_timestamp(START_MS + number) is None
    batch_after = batch_of(1)
    assert append(again, batch_after, epoch=7) == 2 * number
    assert read_all(again) == b"".join(content[:number]) + placed(batch_after, 2 * number, 7)


@pytest.mark.parametrize("left", [0, 1, 60, 61, 80])
def test_a_torn_tail_is_cut(tmp_path: Path, left: int) -> None:
    log, content = filled(tmp_path)
    path = log_files(log)[-1]
    size = os.path.getsize(path)
    os.truncate(path, size - len(content[-1]) + left)
    again = reopen(tmp_path, log)
    assert again.end_offset == 118
    assert read_all(again) == b"".join(content[:-1])
    assert os.path.getsize(path) == size - len(content[-1])


def test_a_lost_tail_of_a_closed_segment_ends_the_log(tmp_path: Path) -> None:
    log, content = filled(tmp_path)
    path = log_files(log)[1]
    os.truncate(path, os.path.getsize(path) - len(content[0]))
    base = log.segments()[2].base
    again = reopen(tmp_path, log)
    assert again.end_offset == base - 2 and "hole" in again.cuts[0]
    assert read_all(again) == b"".join(content[: base // 2 - 1])
    assert len(log_files(again)) == 2


def test_a_gap_inside_a_segment_is_legal(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    batches = [placed(batch_of(1), offset, 0) for offset in (0, 5, 9)]
    for batch in batches:
        log.appender.append_as_follower(memoryview(batch))
    again = reopen(tmp_path, log)
    assert again.cuts == () and again.end_offset == 10
    assert read_all(again) == b"".join(batches)


def test_a_gap_between_trusted_segments_is_legal(tmp_path: Path) -> None:
    log, content = filled(tmp_path, flush_at=60)
    # The state after a compaction that removed the last batch of a closed segment.
    path = log_files(log)[1]
    os.truncate(path, os.path.getsize(path) - len(content[0]))
    base = log.segments()[2].base
    again = reopen(tmp_path, log)
    assert again.cuts == () and again.end_offset == 120
    assert read_all(again, start=base - 2) == b"".join(content[base // 2 :])


# --- missing and foreign files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_indexes_are_rebuilt(tmp_path: Path, suffix: str, clean: bool) -> None:
    log, content = filled(tmp_path, flush_at=60)
    state = log.reader.state_at(60)
    log.close(clean=clean)
    for name in os.listdir(log.directory):
        if name.endswith(suffix):
            os.unlink(os.path.join(log.directory, name))
    again = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point)
    assert read_all(again) == b"".join(content)
    assert again.reader.state_at(60) == state
    assert again.offset_for_timestamp(START_MS + 30) == (START_MS + 30, 60, 1)
    assert append(again, batch_of(1), epoch=5) == 120


@pytest.mark.parametrize("content", [b"", b"123", b"\xff" * 24])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damaged_indexes_do_not_mislead(tmp_path: Path, content: bytes, suffix: str) -> None:
    log, batches = filled(tmp_path)
    log.close(clean=True)
    for name in os.listdir(log.directory):
        if name.endswith(suffix):
            Path(log.directory, name).write_bytes(content)
    again = open_log(tmp_path, settings=SMALL, clean=True)
    if not (content == b"" and suffix == ".timeindex"):  # records without timestamps leave an empty time index
        assert again.offset_for_timestamp(START_MS + 30) == (START_MS + 30, 60, 1)
    assert read_all(again) == b"".join(batches)
    assert again.end_offset == 120


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [b"", b"more", b"\x7f" * 35], ids=["cut", "longer", "of another version"])
def test_a_damaged_transaction_index_is_rebuilt(tmp_path: Path, damage: bytes, clean: bool) -> None:
    """Without the transaction index, aborted records would pass as committed. So the error advises a restart, not a deletion of
    the file."""
    log = open_log(tmp_path, settings=SMALL)
    for number in range(12):
        append(log, batch_of(1, producer=(number, 0, 0), transactional=True))
        append(log, batch_of(3))
        append(log, marker(ControlKind.ABORT if number % 2 else ControlKind.COMMIT, number))
    aborted, content = log.reader.aborted_transactions(0, 60), read_all(log)
    assert [each.producer_id for each in aborted] == [1, 3, 5, 7, 9, 11]
    log.flush()
    log.close(clean=clean)
    indexes = sorted(Path(log.directory).glob("*.txnindex"))
    assert len(indexes) >= 2
    log = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point)
    for path in indexes[:2]:
        path.write_bytes(path.read_bytes()[:-1] + damage)
    with pytest.raises(StorageError, match=r"restart the node|cannot read"):
        log.reader.aborted_transactions(0, 60)
    log.close(clean=clean)
    log = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point)
    assert log.reader.aborted_transactions(0, 60) == aborted
    assert read_all(log) == content
    log.close(clean=True)
    assert open_log(tmp_path, settings=SMALL, clean=True).reader.aborted_transactions(0, 60) == aborted


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_that_are_lost_are_read_from_all_segments(tmp_path: Path, clean: bool) -> None:
    """The newest segment is read, too, although it is trusted after a clean stop."""
    log = open_log(tmp_path, settings=SMALL)
    for epoch in (1, 4):
        while len(log.segments()) <= epoch:
            append(log, batch_of(2), epoch=epoch)
    append(log, batch_of(2), epoch=7)
    known = log.end.epochs.entries()
    assert [entry.epoch for entry in known] == [1, 4, 7]
    log.flush()
    log.close(clean=clean)
    (Path(log.directory) / "leader-epoch-checkpoint").unlink()
    again = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point)
    assert again.end.epochs.entries() == known


@pytest.mark.parametrize("clean", [True, False])
def test_a_zeroed_offset_index_does_no_harm(tmp_path: Path, clean: bool) -> None:
    log, batches = filled(tmp_path, flush_at=60)
    log.close(clean=clean)
    for name in os.listdir(log.directory):
        if name.endswith(".index"):
            path = Path(log.directory, name)
            path.write_bytes(path.read_bytes()[:16] + bytes(len(path.read_bytes()) - 16))
    again = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=log.recovery_point)
    for offset in range(120):
        assert read_all(again, offset, offset // 2 * 2 + 2) == batches[offset // 2]
    assert again.offset_for_timestamp(START_MS + 30) == (START_MS + 30, 60, 1)
    again.truncate_to(70)
    assert append(again, batch_of(1), epoch=4) == 70
    assert read_all(again) == b"".join(batches[:35]) + placed(batch_of(1), 70, 4)


def test_a_lost_epoch_checkpoint_is_read_from_the_log(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, flush_at=60)
    log.close(clean=True)
    os.unlink(os.path.join(log.directory, "leader-epoch-checkpoint"))
    for clean in (True, False):
        again = open_log(tmp_path, settings=SMALL, clean=clean, recovery_point=120)
        assert again.end.epochs.entries() == (EpochEntry(0, 0), EpochEntry(1, 40), EpochEntry(2, 80))
        again.close(clean=False)


@pytest.mark.parametrize("gone", [(1, 2), (1, 4), (2, 4)])
def test_epochs_begin_where_they_did_though_compaction_took_their_first_batches(
    tmp_path: Path, gone: tuple[int, int]
) -> None:
    log = open_log(tmp_path)
    content = [placed(batch_of(2), append(log, batch_of(2), epoch=epoch), epoch) for epoch in (0, 1, 2, 2, 5)]
    known = log.end.epochs.entries()
    assert known == (EpochEntry(0, 0), EpochEntry(1, 2), EpochEntry(2, 4), EpochEntry(5, 8))
    log.close(clean=False)
    Path(log.directory, layout.EPOCHS).write_bytes(leader_epochs.encode(known))
    path = Path(log.directory, f"{0:020d}.log")
    path.write_bytes(b"".join(content[: gone[0]] + content[gone[1] :]))
    again = open_log(tmp_path, recovery_point=0)
    assert (again.end.epochs.entries(), again.end_offset) == (known, 10)


def test_leftovers_are_swept(tmp_path: Path) -> None:
    log, content = filled(tmp_path, flush_at=60)
    log.close(clean=False)
    numbered = ((7, ".log.deleted"), (7, ".txnindex"), (7, ".batches"), (999, ".index"), (999, ".snapshot"))
    for name in ("x.tmp", *(f"{offset:020d}{suffix}" for offset, suffix in numbered)):
        Path(log.directory, name).write_bytes(b"?")
    Path(log.directory, "notes.txt").write_text("an operator's")
    again = open_log(tmp_path, settings=SMALL, recovery_point=120)
    left = os.listdir(log.directory)
    assert "notes.txt" in left
    assert not [
        name for name in left if name.endswith((".tmp", ".deleted")) or name.startswith((f"{999:020d}", f"{7:020d}"))
    ]
    assert read_all(again) == b"".join(content)


# --- file descriptors -------------------------------------------------------------------------------------------------
def test_open_partitions_hold_no_descriptors(tmp_path: Path) -> None:
    logs = []
    for number in range(40):
        (tmp_path / str(number)).mkdir()
        logs.append(filled(tmp_path / str(number), 20)[0])
    for number, log in enumerate(logs):
        logs[number] = reopen(tmp_path / str(number), log, clean=number % 2 == 0)
    before = len(os.listdir("/proc/self/fd"))
    for log in logs:
        log.close(clean=False)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(not segment.is_open for log in logs for segment in log._segments.all)


def test_readers_of_history_hold_few_descriptors(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 300)
    assert len(log.segments()) > 12
    before = len(os.listdir("/proc/self/fd"))
    assert read_all(log)
    assert len(os.listdir("/proc/self/fd")) <= before + 6
