"""The effect of truncation on a log's batches, indexes, epoch history and producer state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import EpochEntry
from tests.storage_tiers.hot.support import (
    SMALL,
    START_MS,
    append,
    batch_of,
    filled,
    marker,
    open_log,
    placed,
    read_all,
)


@pytest.mark.parametrize("offset", [0, 1, 2, 33, 34, 80, 81, 118, 119, 120, 500])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_truncated_log_keeps_the_batches_below_the_offset(tmp_path: Path, offset: int, flushed: bool) -> None:
    log, content = filled(tmp_path, 60)
    if flushed:
        log.flush()
    log.truncate_to(offset)
    kept = content[: min(offset, 120) // 2]
    assert read_all(log) == b"".join(kept)
    assert log.end_offset == 2 * len(kept)
    assert log.recovery_point <= log.end_offset
    assert log.size_bytes == len(b"".join(kept))
    assert log.offset_for_timestamp(START_MS + len(kept) * 10) is None
    for number in range(30):
        batch = batch_of(1, value=b"new %d" % number, timestamps=[START_MS + 5000 + number])
        kept.append(placed(batch, append(log, batch, epoch=2), 2))
    assert read_all(log) == b"".join(kept)
    assert log.offset_for_timestamp(START_MS + 5000) == (START_MS + 5000, log.end_offset - 30, 2)
    log.flush()
    log.close(clean=False)
    again = open_log(tmp_path, settings=SMALL, recovery_point=log.recovery_point)
    assert read_all(again) == b"".join(kept) and again.cuts == ()


def test_truncation_also_truncates_epochs_producers_and_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch_of(1, producer=(9, 0, 0)), epoch=1)
    append(log, batch_of(1, producer=(8, 0, 0), transactional=True), epoch=1)
    before = log.end.producers.snapshot()
    append(log, marker(ControlKind.ABORT, 8), epoch=2)
    append(log, batch_of(1, producer=(9, 0, 1)), epoch=3)
    assert log.epoch_end_offset(2) == (2, 3)
    log.truncate_to(2)
    assert log.end.epochs.entries() == (EpochEntry(1, 0),)
    assert log.end.producers.snapshot() == before
    assert log.end.producers.first_unstable_offset == 1
    assert log.reader.aborted_transactions(0, 10) == []


@pytest.mark.parametrize("beyond", [0, 7])
def test_an_epoch_without_records_goes_with_a_truncation_to_its_start(tmp_path: Path, beyond: int) -> None:
    """A leader that wrote nothing must not keep the offset for its epoch: the next leader's record there has another epoch."""
    log = open_log(tmp_path)
    append(log, batch_of(2), epoch=1)
    log.begin_epoch(5)
    assert log.epoch_end_offset(5) == (5, 2)
    log.truncate_to(log.end_offset + beyond)
    assert log.end_offset == 2
    assert log.end.epochs.entries() == (EpochEntry(1, 0),)
    assert (log.end.epochs.latest, log.epoch_at(2)) == (1, 1)
    log.flush()
    log.close(clean=True)
    assert open_log(tmp_path, recovery_point=2).end.epochs.entries() == (EpochEntry(1, 0),)


def test_a_log_can_start_over_at_another_offset(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 60)
    log.flush()
    donor = ProducerStateManager()
    donor.update(read_header(batch_of(2, producer=(5, 1, 7))), 900, now_ms=START_MS)
    epochs = (EpochEntry(1, 0), EpochEntry(6, 880))
    log.truncate_fully_and_start_at(1000, epochs=epochs, producer_state=donor.snapshot())
    assert (log.local_start_offset, log.end_offset, log.recovery_point) == (1000, 1000, 1000)
    assert log.epoch_end_offset(1) == (1, 880)
    batch = batch_of(1, producer=(5, 1, 9))
    assert log.end.producers.check(read_header(batch), now_ms=START_MS) is None
    assert append(log, batch, epoch=7) == 1000
    for clean in (True, False):
        log.close(clean=clean)
        log = open_log(tmp_path, log_start_offset=1000, clean=clean)
        assert read_all(log) == placed(batch, 1000, 7)
        assert log.end.epochs.entries() == (EpochEntry(7, 1000),)
        assert log.epoch_at(1000) == 7
        assert log.reader.state_at(1000) == donor.snapshot()
    assert sorted(os.listdir(log.directory))[0].startswith("0000000000000000100")


def test_a_log_can_start_over_above_the_offsets_of_another_tier(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 60)
    log.truncate_fully_and_start_at(1000, epochs=(EpochEntry(1, 0),), log_start_offset=40)
    assert (log.log_start_offset, log.local_start_offset, log.end_offset) == (40, 1000, 1000)
    log.truncate_to(900)
    assert (log.log_start_offset, log.local_start_offset, log.end_offset) == (40, 900, 900)
    assert log.end.epochs.entries() == (EpochEntry(1, 0),)


def test_an_epoch_is_known_before_its_first_record(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 3)
    assert log.epoch_end_offset(4) == (-1, -1)
    log.begin_epoch(4)
    assert (log.epoch_end_offset(4), log.epoch_end_offset(3), log.epoch_at(6)) == ((4, 6), (1, 6), 4)
    append(log, batch_of(1), epoch=4)
    log.close(clean=True)
    assert open_log(tmp_path, clean=True).end.epochs.entries() == (EpochEntry(1, 0), EpochEntry(4, 6))


def test_a_log_that_ends_below_an_impossible_log_start_keeps_its_records(tmp_path: Path) -> None:
    """After a clean stop the log has all that was flushed, so a log start above its end is an error."""
    log, _ = filled(tmp_path, 5)
    log.close(clean=True)
    log = open_log(tmp_path, log_start_offset=50, clean=True)
    assert (log.local_start_offset, log.end_offset, log.log_start_offset) == (0, 10, 0)


def test_a_log_that_ends_below_log_start_begins_there(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 5)
    log.close(clean=False)
    log = open_log(tmp_path, log_start_offset=50, clean=False)
    assert (log.local_start_offset, log.end_offset, log.log_start_offset) == (50, 50, 50)
    assert append(log, batch_of(1)) == 50
