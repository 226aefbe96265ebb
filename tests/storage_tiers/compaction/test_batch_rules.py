"""The batches of aborted transactions, the marker that identifies a producer, and the time of a cleaned batch."""

from __future__ import annotations

from pathlib import Path

from storage_tiers.compaction.batches import CleaningRules, LastRecord, is_unneeded
from storage_tiers.compaction.transactions import CleanedTransactions
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import BatchHeader, read_header
from storage_tiers.records.builder import ControlKind, NewRecord, assemble, build_batch, build_control_batch
from storage_tiers.types import AbortedTransaction
from tests.storage_tiers.compaction.support import batch, clean, closed, records, write
from tests.storage_tiers.hot.support import START_MS, open_log

ABORTED = AbortedTransaction(7, 2, 5, 2)


def data_at(offset: int) -> BatchHeader:
    record = NewRecord(b"k", b"v", timestamp=0)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    return read_header(build_batch([record], base_offset=offset, transactional=True, **producer))  # type: ignore[arg-type]


def marker_at(offset: int, epoch: int = 0) -> BatchHeader:
    built = build_control_batch(
        ControlKind.ABORT, producer_id=7, producer_epoch=epoch, coordinator_epoch=0, timestamp=0, base_offset=offset
    )
    return read_header(built)


def test_records_from_an_aborted_transactions_last_offset_on_belong_to_the_next_one() -> None:
    """If the marker is in a later segment, the last offset is the segment's end, where the next transaction may begin."""
    seen = CleanedTransactions([ABORTED])
    assert [seen.is_aborted(data_at(offset)) for offset in (2, 4, 5, 6)] == [True, True, False, False]


def test_a_marker_beyond_an_aborted_transaction_is_not_its_marker() -> None:
    seen = CleanedTransactions([ABORTED])
    assert seen.is_aborted(data_at(2))
    assert seen.is_unneeded_marker(marker_at(6), ControlKind.ABORT, keep=True)
    assert seen.aborted == []


def test_an_emptied_marker_identifies_its_producer_in_its_own_epoch_only() -> None:
    rules = CleaningRules(0, 0, latest=9, drops_below=9, producers={7: LastRecord(-1, 1)})
    emptied = [assemble(marker_at(0, epoch)._replace(count=0), b"") for epoch in (0, 1)]
    assert [is_unneeded(each, rules) for each in emptied] == [True, False]


def test_a_cleaned_batch_keeps_the_time_at_which_it_was_appended(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=100_000, index_interval_bytes=100))
    made = [NewRecord(b"a", b"1", timestamp=START_MS), NewRecord(b"b", None, timestamp=START_MS)]
    write(log, build_batch(made, log_append_time=START_MS + 500), batch(("a", "2")))
    closed(log)
    clean(log, drops_below=0)
    kept = [each for each in records(log) if each.key == b"b"]
    assert [each.timestamp for each in kept] == [START_MS + 500]
