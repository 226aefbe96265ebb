"""The cleaning of a log: the records that stay, those that go and when, and the batches and indexes afterwards."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_tiers.compaction.main import Heartbeats, Throttle
from storage_tiers.compaction.offset_map import SLOT_BYTES
from storage_tiers.compaction.rewriter import MOST_MAP_BYTES, MOST_SOURCES, offset_map
from storage_tiers.errors import CorruptRecord, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.codecs import Codec
from tests.storage_tiers.compaction.support import (
    KEY,
    LATER_MS,
    batch,
    batch_headers,
    clean,
    closed,
    horizons,
    pairs,
    records,
    swap_in,
    table,
    write,
)
from tests.storage_tiers.hot.support import START_MS, marker, open_log, read_all
from tests.support.clock import ManualClock

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=100)


@pytest.fixture
def log(tmp_path: Path) -> HotLog:
    return open_log(tmp_path, settings=SETTINGS)


def reopened(log: HotLog, *, clean: bool = True) -> HotLog:
    log.close(clean=clean)
    return open_log(
        os.path.dirname(log.directory),
        settings=log.settings,
        clean=clean,
        recovery_point=log.recovery_point,
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_only_the_newest_record_of_a_key_stays(log: HotLog, codec: Codec) -> None:
    write(log, batch(("a", "1"), ("b", "1"), ("c", "1"), codec=codec), batch(("a", "2"), codec=codec))
    closed(log)
    write(log, batch(("b", "2"), ("a", "3"), codec=codec))
    closed(log)
    write(log, batch(("c", "active")))
    assert clean(log) == 6
    expected = [(2, "c", "1"), (4, "b", "2"), (5, "a", "3"), (6, "c", "active")]
    assert pairs(log) == expected
    assert batch_headers(log) == [(0, 2, 1), (4, 5, 2), (6, 6, 1)]
    assert {header.codec for _, header in headers(read_all(log)[:-80])} == {codec}
    assert pairs(reopened(log)) == expected
    assert pairs(reopened(log, clean=False)) == expected


def test_segments_that_fit_one_become_one(log: HotLog) -> None:
    for number in range(6):
        write(log, batch((f"k{number}", "v" * 100)))
        closed(log)
    clean(log, fences=(3,))
    assert [(each.base, each.end) for each in log.segments()] == [(0, 3), (3, 6), (6, 6)]
    assert [offset for offset, _, _ in pairs(log)] == list(range(6))
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_segments_become_one_by_their_size_after_cleaning(log: HotLog) -> None:
    for number in range(2 * MOST_SOURCES + 2):
        write(log, batch(("a", f"{number}" + "v" * 60_000)))
        closed(log)
    clean(log)
    # MOST_SOURCES bounds the files that one swap renames.
    assert [each.base for each in log.segments()] == [0, MOST_SOURCES, 2 * MOST_SOURCES, 2 * MOST_SOURCES + 2]
    assert batch_headers(log)[:2] == [(MOST_SOURCES - 1,) * 2 + (0,), (2 * MOST_SOURCES - 1,) * 2 + (0,)]
    closed(log)
    clean(log)
    assert [each.base for each in log.segments()] == [0, 2 * MOST_SOURCES + 2]
    assert [offset for offset, _, _ in pairs(log)] == [2 * MOST_SOURCES + 1]


def test_a_group_that_stays_large_ends_where_the_next_segment_may_not_fit(log: HotLog) -> None:
    for number in range(4):
        write(log, batch((f"k{number}", "v" * 40_000)))
        closed(log)
    clean(log)
    assert [(each.base, each.end) for each in log.segments()] == [(0, 2), (2, 4), (4, 4)]


def test_unchanged_segments_are_not_swapped(log: HotLog) -> None:
    write(log, batch(("a", "1"), ("b", "1")))
    closed(log)
    before = os.stat(log.segments()[0].path).st_ino
    clean(log)
    assert os.stat(log.segments()[0].path).st_ino == before


def test_the_last_batch_of_a_segment_stays_though_emptied(log: HotLog) -> None:
    write(log, batch(("a", "1")), batch(("a", "2"), ("a", "3")))
    closed(log)
    write(log, batch(("a", "4")))
    closed(log)
    clean(log, fences=(3,))
    assert batch_headers(log) == [(1, 2, 0), (3, 3, 1)]
    newest = log.max_timestamp()
    assert newest is not None
    assert newest.offset == 3
    log = reopened(log, clean=False)
    assert (log.end_offset, pairs(log)) == (4, [(3, "a", "4")])


def test_records_without_a_key_are_removed(log: HotLog) -> None:
    write(log, batch((None, "x"), ("a", "1")))
    closed(log)
    clean(log)
    assert pairs(log) == [(1, "a", "1")]


def test_a_full_map_ends_the_cleaning_and_the_next_continues_there(log: HotLog) -> None:
    for number in range(20):
        write(log, batch((f"k{number % 10}", f"{number}")))
    closed(log)
    reached = clean(log, most_keys=4)
    assert 4 <= reached < 20
    assert table(log) == {b"k%d" % (number % 10): b"%d" % number for number in range(10, 20)}
    rounds = 1
    while reached < 20:
        reached, rounds = clean(log, dirty_start=reached, most_keys=4), rounds + 1
    assert rounds >= 4
    assert [offset for offset, _, _ in pairs(log)] == list(range(10, 20))


def test_a_batch_of_more_keys_than_the_map_holds_names_the_config(log: HotLog) -> None:
    write(log, batch(*((f"k{number}", "v") for number in range(50))))
    closed(log)
    with pytest.raises(StorageError, match=r"raise log\.cleaner\.dedupe\.buffer\.size"):
        clean(log, most_keys=4)
    assert clean(log, most_keys=200) == 50


# --- tombstones -------------------------------------------------------------------------------------------------------
def test_a_tombstone_is_removed_by_the_first_cleaning_after_its_horizon(log: HotLog) -> None:
    write(log, batch(("a", "1"), ("b", "1")), batch(("a", None), ("c", "1"), timestamps=[START_MS + 7, START_MS + 3]))
    closed(log)
    clean(log, now_ms=START_MS, delete_retention_ms=1000)
    kept = [(each.offset, each.key, each.value, each.timestamp) for each in records(log)]
    assert kept == [
        (1, b"b", b"1", START_MS + 1),
        (2, b"a", None, START_MS + 7),
        (3, b"c", b"1", START_MS + 3),
    ]
    horizons = [header for _, header in headers(read_all(log)) if header.delete_horizon]
    assert [(each.base_offset, each.base_timestamp, each.max_timestamp) for each in horizons] == [
        (2, START_MS + 1000, START_MS + 7)
    ]
    clean(log, now_ms=START_MS + 999)
    assert [offset for offset, _, _ in pairs(log)] == [1, 2, 3]
    clean(log, now_ms=START_MS + 1000, delete_retention_ms=1000)
    assert [offset for offset, _, _ in pairs(log)] == [1, 3]
    assert records(log)[1].timestamp == START_MS + 3


def test_a_tombstone_stays_while_older_records_are_elsewhere(log: HotLog) -> None:
    write(log, batch(("a", None)), batch(("b", "1")))
    closed(log)
    for _ in range(3):
        clean(log, now_ms=LATER_MS, drops_below=0)
    assert pairs(log) == [(0, "a", None), (1, "b", "1")]


def test_the_retention_of_a_tombstone_begins_once_older_records_are_gone_elsewhere(log: HotLog) -> None:
    """If the retention began earlier, it could be over when the other tier removes the value: the tombstone would go at
    once."""
    write(log, batch(("a", None)), batch(("b", "1")))
    closed(log)
    clean(log, now_ms=START_MS, delete_retention_ms=1000, drops_below=0)
    assert horizons(log) == []
    clean(log, now_ms=START_MS + 5000, delete_retention_ms=1000, drops_below=1)
    assert horizons(log) == [(0, 6000)]
    for now_ms, left in ((5999, [0, 1]), (6000, [1])):
        clean(log, now_ms=START_MS + now_ms)
        assert [offset for offset, _, _ in pairs(log)] == left


def test_the_retention_of_a_tombstone_begins_once_the_map_of_keys_has_reached_it(log: HotLog) -> None:
    """The cleaning that sets the horizon also removes the older value."""
    write(log, *(batch((f"k{number}", "v")) for number in range(6)), batch(("k5", None)), batch(("z", "1")))
    closed(log)
    reached = clean(log, now_ms=START_MS, delete_retention_ms=1000, most_keys=2)
    assert reached < 5
    assert horizons(log) == []
    assert clean(log, dirty_start=reached, now_ms=START_MS + 5000, delete_retention_ms=1000) == 8
    assert horizons(log) == [(6, 6000)]
    assert [offset for offset, _, _ in pairs(log)] == [0, 1, 2, 3, 4, 6, 7]


# --- producers and transactions ---------------------------------------------------------------------------------------
def test_the_last_batch_of_a_producer_stays_though_emptied(log: HotLog) -> None:
    write(
        log,
        batch(("a", "1"), producer=(7, 0, 0)),
        batch(("a", "2"), producer=(7, 0, 1)),
        batch(("a", "3")),
        batch(("z", "1")),
    )
    closed(log)
    clean(log)
    assert batch_headers(log) == [(1, 1, 0), (2, 2, 1), (3, 3, 1)]
    (_, emptied), *_ = headers(read_all(log))
    assert (emptied.producer_id, emptied.producer_epoch, emptied.base_sequence) == (7, 0, 1)
    log = reopened(log, clean=False)
    assert log.end.producers.producers[7].batches[-1].last_sequence == 1


def test_the_newest_record_is_found_beside_an_emptied_batch_that_was_newer(log: HotLog) -> None:
    write(
        log,
        batch(("a", "1"), producer=(7, 0, 0), timestamps=[START_MS + 900]),
        batch(("a", "2"), ("b", "1")),
        batch(("z", "1"), timestamps=[START_MS - 5]),
    )
    closed(log)
    clean(log)
    assert batch_headers(log)[0] == (0, 0, 0), "its producer's last batch"
    for remake_indexes in (False, True):
        newest = log.max_timestamp()
        assert newest is not None
        assert (newest.timestamp, newest.offset) == (START_MS + 1, 2)
        assert log.segments()[0].max_timestamp == START_MS + 1
        if remake_indexes:
            for name in os.listdir(log.directory):
                if name.endswith("index"):
                    os.unlink(os.path.join(log.directory, name))
        log = reopened(log, clean=False)
    assert log.segments()[0].max_timestamp == START_MS + 1
    assert log.max_timestamp() == newest


def transaction(log: HotLog, producer: int, sequence: int, kind: ControlKind, *pairs: tuple[str, str | None]) -> None:
    write(log, batch(*pairs, producer=(producer, 0, sequence), transactional=True), marker(kind, producer))


def test_records_of_aborted_transactions_are_removed_and_their_markers_later(log: HotLog) -> None:
    write(log, batch(("a", "committed")))
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"), ("b", "aborted"))
    transaction(log, 7, 2, ControlKind.COMMIT, ("c", "1"))
    closed(log)
    assert table(log) == {b"a": b"committed", b"c": b"1"}
    clean(log, delete_retention_ms=1000)
    assert table(log) == {b"a": b"committed", b"c": b"1"}
    assert [(base, count) for base, _, count in batch_headers(log)] == [(0, 1), (3, 1), (4, 1), (5, 1)]
    assert len(log.reader.aborted_transactions(0, 10)) == 1
    clean(log, delete_retention_ms=1000)  # no batch of the transaction is left, so the marker gets its delete horizon
    assert log.reader.aborted_transactions(0, 10) == []
    assert [(base, count) for base, _, count in batch_headers(log)] == [(0, 1), (3, 1), (4, 1), (5, 1)]
    clean(log, now_ms=START_MS + 1000)
    assert [(base, count) for base, _, count in batch_headers(log)] == [(0, 1), (4, 1), (5, 1)]


def test_an_aborted_batch_that_a_producer_needs_keeps_its_marker_and_its_entry(log: HotLog) -> None:
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"))
    write(log, batch(("z", "1")))
    closed(log)
    for _ in range(3):
        clean(log, now_ms=LATER_MS)
        assert batch_headers(log) == [(0, 0, 0), (1, 1, 1), (2, 2, 1)]
        assert [each.first_offset for each in log.reader.aborted_transactions(0, 10)] == [0]
    assert table(reopened(log, clean=False)) == {b"z": b"1"}


def test_markers_and_their_entries_stay_while_older_records_are_elsewhere(log: HotLog) -> None:
    transaction(log, 7, 0, ControlKind.ABORT, ("a", "aborted"))
    transaction(log, 7, 1, ControlKind.COMMIT, ("a", "1"))
    write(log, batch(("a", "2")))
    closed(log)
    for _ in range(3):
        clean(log, now_ms=LATER_MS, drops_below=0)
    assert [(base, count) for base, _, count in batch_headers(log)] == [(1, 1), (2, 0), (3, 1), (4, 1)]
    assert [each.first_offset for each in log.reader.aborted_transactions(0, 10)] == [0]
    assert horizons(log) == []
    clean(log, now_ms=START_MS, delete_retention_ms=1000, drops_below=2)
    assert horizons(log) == [(1, 1000)]


def test_a_transaction_over_several_segments_is_one(log: HotLog) -> None:
    write(log, batch(("a", "aborted"), producer=(7, 0, 0), transactional=True))
    closed(log)
    write(log, batch(("b", "aborted"), producer=(7, 0, 1), transactional=True), batch(("a", "1")))
    closed(log)
    write(log, marker(ControlKind.ABORT, 7), batch(("b", "1")))
    closed(log)
    clean(log, dirty_start=1, fences=(1, 3))
    assert table(log) == {b"a": b"1", b"b": b"1"}
    assert [pair[0] for pair in pairs(log)] == [2, 4]


# --- damage and changes underneath ------------------------------------------------------------------------------------
def test_damage_is_not_rewritten(log: HotLog) -> None:
    write(log, batch(("a", "1")), batch(("a", "2")))
    closed(log)
    path = log.segments()[0].path
    content = bytearray(Path(path).read_bytes())
    content[-2] ^= 1
    Path(path).write_bytes(content)
    with pytest.raises(CorruptRecord, match=r"tidelog log dump"):
        clean(log)
    assert Path(path).read_bytes() == content
    content[-2] ^= 1
    Path(path).write_bytes(content)
    assert clean(log) == 2
    assert not [name for name in os.listdir(log.directory) if name.endswith(".cleaned")]


def test_a_log_that_changed_meanwhile_keeps_its_segments(log: HotLog, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.storage_tiers.compaction import support

    write(log, batch(("a", "1")), batch(("a", "2")))
    closed(log)
    write(log, batch(("a", "3")))
    closed(log)

    def truncated_first(log: HotLog, new: object) -> bool:
        log.truncate_to(1)
        assert not swap_in(log, new)  # type: ignore[arg-type]
        return True

    monkeypatch.setattr(support, "swap_in", truncated_first)
    clean(log)
    assert pairs(log) == [(0, "a", "1")]


@pytest.mark.parametrize("step", ["begun", "prepared", "renamed"])
def test_a_truncation_ends_a_swap(log: HotLog, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    from tests.storage_tiers.compaction import support

    for value in ("1", "2", "3"):
        write(log, batch(("a", value), ("b", value)))
        closed(log)

    def interrupted(log: HotLog, new: object) -> bool:
        swap = log.swapping.begin(new)  # type: ignore[arg-type]
        assert swap is not None
        assert log.evict_oldest(log.end_offset) is None
        if step != "begun":
            swap.prepare()
        if step == "renamed":
            assert log.swapping.finish(swap, new)  # type: ignore[arg-type]
        log.truncate_to(4)
        swap.prepare()
        assert not log.swapping.finish(swap, new)  # type: ignore[arg-type]
        swap.commit()
        return True

    monkeypatch.setattr(support, "swap_in", interrupted)
    clean(log)
    expected = [] if step == "renamed" else [(0, "a", "1"), (1, "b", "1"), (2, "a", "2"), (3, "b", "2")]
    for _ in range(2):
        assert pairs(log) == expected
        assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        log = reopened(log, clean=False)


def test_a_reader_within_an_old_segment_continues_undisturbed(log: HotLog) -> None:
    write(log, *(batch((f"k{number % 3}", f"{number}")) for number in range(30)))
    closed(log)
    slices = log.reader.read(0, max_bytes=10_000, upto_offset=30)
    expected = os.pread(slices[0].file.fd, slices[0].length, slices[0].position)
    clean(log)
    assert os.pread(slices[0].file.fd, slices[0].length, slices[0].position) == expected
    slices[0].file.release()
    assert [offset for offset, _, _ in pairs(log)] == [27, 28, 29]
    assert log.offset_for_timestamp(START_MS) is not None


class RefusingFiles(OsFiles):
    """Refuses to rename the new offset index, which happens in the middle of a swap."""

    def rename(self, source: str, target: str) -> None:
        if source.endswith(".index.cleaned"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(source, target)


def test_a_swap_that_the_disk_refuses_is_completed_by_the_next_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS, files=RefusingFiles())
    write(log, batch(("a", "1"), ("b", "1")), batch(("a", "2")))
    closed(log)
    with pytest.raises(StorageError, match="repair or replace the disk, then restart the node"):
        clean(log)
    log = reopened(log, clean=False)
    assert pairs(log) == [(1, "b", "1"), (2, "a", "2")]
    assert not [name for name in os.listdir(log.directory) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_a_damaged_decision_is_named_and_put_back_from_a_copy(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SETTINGS, files=RefusingFiles())
    write(log, batch(("a", "1"), ("b", "1")), batch(("a", "2")))
    closed(log)
    with pytest.raises(StorageError):
        clean(log)
    log.close(clean=False)
    decision = Path(log.directory) / "00000000000000000000.swap"
    content = decision.read_bytes()
    decision.write_bytes(b"{}")
    with pytest.raises(StorageError, match=r"00\.swap is damaged .*; put it back from a copy"):
        open_log(tmp_path, settings=SETTINGS)
    decision.write_bytes(content)
    assert pairs(open_log(tmp_path, settings=SETTINGS)) == [(1, "b", "1"), (2, "a", "2")]


def test_a_throttled_cleaner_says_that_it_works() -> None:
    clock, said = ManualClock(START_MS), list[int]()
    began = clock.steady_ms()
    heartbeats = Heartbeats(
        lambda: said.append(clock.steady_ms() - began), clock, lambda seconds: clock.advance(seconds)
    )
    throttle = Throttle(100, clock, heartbeats.wait)
    throttle.spend(1_200)  # takes 12 s
    assert said == [5_000, 10_000]
    assert clock.steady_ms() - began == 12_000
    heartbeats.beat()
    assert len(said) == 2


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf")])
def test_a_cleaner_without_a_bound_does_not_wait(rate: float) -> None:
    waited = list[float]()
    Throttle(rate, ManualClock(START_MS), waited.append).spend(1 << 40)
    assert waited == []


@pytest.mark.parametrize("load_factor", [-1.0, 0.0, 1e-300, 0.5, 1.0, 2.0, float("inf")])
@pytest.mark.parametrize("buffer_bytes", [-1, 0, 1, 1 << 20, (1 << 63) - 1])
@pytest.mark.parametrize("records", [1, 1 << 40])
def test_a_map_has_room_for_a_key_and_is_no_larger_than_kafkas(
    load_factor: float, buffer_bytes: int, records: int
) -> None:
    made = offset_map(records, buffer_bytes, load_factor, KEY)
    assert made.limit >= 1
    assert made.slots * SLOT_BYTES <= MOST_MAP_BYTES
