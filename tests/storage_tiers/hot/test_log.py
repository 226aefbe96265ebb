"""The log as its users see it: appends, reads, look-ups, rolling, truncation, eviction, offloads."""

from __future__ import annotations

import os
import random
from dataclasses import astuple
from pathlib import Path

import pytest

from storage_tiers.errors import (
    CorruptRecord,
    InconsistentTopicId,
    OffsetOutOfRange,
    RecordBatchTooLarge,
    StorageError,
)
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.hot.reading import MOST_SEGMENTS
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch
from storage_tiers.records.codecs import Codec
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicId
from tests.storage_tiers.hot.support import (
    SMALL,
    START_MS,
    append,
    batch_of,
    evict_below,
    filled,
    marker,
    open_log,
    placed,
    read_all,
    take,
)
from tests.support.clock import ManualClock


# --- appending and reading --------------------------------------------------------------------------------------------
def test_appended_records_are_read(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 100)
    assert (log.local_start_offset, log.log_start_offset, log.end_offset) == (0, 0, 200)
    assert len(log.segments()) > 4
    assert read_all(log) == b"".join(content)
    assert log.size_bytes == len(b"".join(content))
    for offset in range(200):
        assert take(log.reader.read(offset, max_bytes=1, upto_offset=200)) == content[offset // 2]
    assert log.reader.read(200, max_bytes=1000, upto_offset=200) == []


def test_the_callers_batch_is_not_touched(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch_of(1))
    batch = batch_of(3)
    assert append(log, batch, epoch=9) == 1
    assert batch == batch_of(3)
    assert take(log.reader.read(1, max_bytes=9999, upto_offset=4)) == placed(batch, 1, 9)


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_reads_outside_the_log_are_refused(tmp_path: Path, offset: int) -> None:
    log, _ = filled(tmp_path, 5)
    with pytest.raises(OffsetOutOfRange, match="is outside of"):
        log.reader.read(offset, max_bytes=1000, upto_offset=10)


@pytest.mark.parametrize("damage", ["gone", "empty", "cut"])
def test_a_gap_is_passed_over_only_where_it_may_be(tmp_path: Path, damage: str) -> None:
    """Start-up trusts closed segments, so that a damaged one looks like a gap from compaction."""
    log, _ = filled(tmp_path, 80)
    log.close(clean=True)
    paths = sorted((tmp_path / str(log.partition)).glob("*.log"))
    following = int(paths[2].stem)
    if damage == "gone":
        paths[1].unlink()
    else:
        os.truncate(paths[1], 0 if damage == "empty" else read_header(paths[1].read_bytes(), 0).size)
    log = open_log(tmp_path, settings=SMALL, clean=True)

    with pytest.raises(StorageError, match=f"ends before offset {following - 1}; put the file back from a copy"):
        log.reader.read(following - 1, max_bytes=1 << 20, upto_offset=log.end_offset, over_gaps=False)
    assert log.reader.read(following - 1, max_bytes=1 << 20, upto_offset=log.end_offset)
    assert log.reader.read(following, max_bytes=1 << 20, upto_offset=log.end_offset, over_gaps=False)


def test_a_read_stays_within_its_bounds(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 8)
    size = len(content[0])
    whole = b"".join(content)
    assert take(log.reader.read(0, max_bytes=3 * size + 5, upto_offset=16)) == whole[: 3 * size + 5]
    assert take(log.reader.read(0, max_bytes=9999, upto_offset=6)) == whole[: 3 * size]
    assert take(log.reader.read(0, max_bytes=9999, upto_offset=7)) == whole[: 3 * size]  # the bound lies inside a batch
    assert log.reader.read(0, max_bytes=5, upto_offset=16, min_one=False) == []
    assert log.reader.read(0, max_bytes=0, upto_offset=16, min_one=False) == []
    assert log.reader.read(6, max_bytes=9999, upto_offset=6) == []
    assert log.reader.read(6, max_bytes=9999, upto_offset=2) == []


def test_a_read_continues_over_short_segments(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 40, LogSettings(segment_bytes=100))
    size, whole = len(content[0]), b"".join(content)
    assert log.segment_count == 40, "one batch each"
    bounded = log.reader.read(0, max_bytes=1 << 20, upto_offset=80)
    assert len(bounded) == MOST_SEGMENTS
    assert take(bounded) == whole[: sum(len(batch) for batch in content[:MOST_SEGMENTS])]
    assert take(log.reader.read(0, max_bytes=2 * size + 1, upto_offset=80)) == whole[: 2 * size], "no part of a batch"
    assert take(log.reader.read(0, max_bytes=1 << 20, upto_offset=4)) == whole[: 2 * size]
    assert take(log.reader.read(0, max_bytes=1 << 20, upto_offset=5)) == whole[: 2 * size]
    assert take(log.reader.read(74, max_bytes=1 << 20, upto_offset=80)) == b"".join(content[37:])
    assert read_all(log) == whole


def test_an_answer_over_several_segments_has_the_aborted_transactions_of_all(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=200))
    for producer in (1, 2, 3):
        append(log, batch_of(producer=(producer, 0, 0), transactional=True), epoch=1)
        append(log, marker(ControlKind.ABORT, producer), epoch=1)
    aborted: list[AbortedTransaction] = []
    take(log.reader.read(0, max_bytes=1 << 20, upto_offset=6, aborted=aborted))
    assert [(each.producer_id, each.first_offset) for each in aborted] == [(1, 0), (2, 2), (3, 4)]


def test_a_batch_larger_than_every_buffer_is_read_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    large = batch_of(1, value=os.urandom(3_000_000))
    for batch in (batch_of(1), large, batch_of(2)):
        append(log, batch)
    assert take(log.reader.read(1, max_bytes=10, upto_offset=4)) == placed(large, 1, 0)
    assert take(log.reader.read(2, max_bytes=9999, upto_offset=4)) == placed(batch_of(2), 2, 0)
    assert log.offset_for_timestamp(START_MS) == (START_MS, 0, 0)
    log.close(clean=False)
    assert open_log(tmp_path).end_offset == 4


def test_readers_keep_evicted_and_deleted_files(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 60)
    slices = log.reader.read(0, max_bytes=500, upto_offset=120)
    assert evict_below(log, 100) > 0
    log.delete()
    assert not os.path.exists(log.directory) and os.listdir(tmp_path) == []
    assert take(slices) == b"".join(content)[:500]


# --- rolling ----------------------------------------------------------------------------------------------------------
def test_a_batch_that_fits_no_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_bytes=100))
    with pytest.raises(RecordBatchTooLarge, match="fits no segment"):
        append(log, batch_of(1, value=b"v" * 100))
    assert log.end_offset == 0 and log.size_bytes == 0


def test_segments_roll_by_record_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_ms=1000))
    for delta in (0, 1000, 500, 1001, 1500):
        append(log, batch_of(1, timestamps=[START_MS + delta]))
    assert [segment.base for segment in log.segments()] == [0, 3]
    assert log.appender.rolled


def test_segments_without_timestamps_roll_by_the_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_ms=1000))
    for now in (0, 900, 1001, 1500):
        append(log, batch_of(1, timestamps=[-1]), now_ms=START_MS + now)
    assert [segment.base for segment in log.segments()] == [0, 2]


def test_jitter_brings_the_roll_forward(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_ms=1000, segment_jitter_ms=900))
    append(log, batch_of(1, timestamps=[START_MS]))
    append(log, batch_of(1, timestamps=[START_MS + 999]))
    assert len(log.segments()) == 2


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=LogSettings(segment_index_bytes=60, index_interval_bytes=100))
    for number in range(40):
        append(log, batch_of(1, timestamps=[START_MS + number]))
    log.close(clean=True)
    sizes = [
        os.path.getsize(os.path.join(log.directory, name)) for name in os.listdir(log.directory) if "index" in name
    ]
    assert max(sizes) <= 60 and len(log.segments()) > 3


def test_an_empty_segment_does_not_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.roll() == 0 and not log.appender.rolled
    append(log, batch_of(2))
    assert log.roll() == 2 and log.appender.rolled
    assert log.roll() == 2
    assert [segment.active for segment in log.segments()] == [False, True]


def test_changed_settings_bind_at_once(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 3, LogSettings())
    log.reconfigure(LogSettings(segment_bytes=len(content[0]) * 3))
    append(log, batch_of(1))
    assert [segment.base for segment in log.segments()] == [0, 6]


def test_planners_see_the_times_and_sizes_of_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, clock=ManualClock(START_MS))
    append(log, batch_of(2, timestamps=[70, 20]), now_ms=START_MS + 5)
    append(log, batch_of(1, timestamps=[60]), now_ms=START_MS + 9)
    log.roll()
    closed, active = log.segments()
    assert (closed.base, closed.end, closed.max_timestamp, closed.max_timestamp_offset) == (0, 3, 70, 1)
    assert (closed.first_append_ms, closed.active, closed.size_bytes) == (START_MS + 5, False, log.size_bytes)
    assert (active.base, active.end, active.first_append_ms, active.max_timestamp) == (3, 3, -1, -1)
    assert closed.path.endswith("00000000000000000000.log")


# --- time -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stop", ["running", "clean", "killed"])
def test_time_lookups_are_exact_whatever_the_order(tmp_path: Path, seed: int, stop: str) -> None:
    chance = random.Random(seed)
    settings = LogSettings(segment_bytes=3000, index_interval_bytes=chance.choice((0, 200, 700, 5000)))
    log, records = open_log(tmp_path, settings=settings), []
    for number in range(60):
        centre = START_MS + number * 3 * (seed % 3)
        stamps = [centre + chance.randrange(100) for _ in range(chance.randrange(1, 5))]
        codec = chance.choice((Codec.NONE, Codec.ZSTD))
        base = append(log, build_batch([NewRecord(None, b"v" * 40, timestamp=stamp) for stamp in stamps], codec=codec))
        records += [(base + index, stamp) for index, stamp in enumerate(stamps)]
    if stop != "running":
        log.flush()
        log.close(clean=stop == "clean")
        log = open_log(tmp_path, settings=settings, clean=stop == "clean", recovery_point=log.recovery_point)
    for start in (0, records[40][0]):
        log.raise_log_start(start)
        visible = [each for each in records if each[0] >= start]
        for target in range(START_MS - 1, START_MS + 480, 7):
            expected = next(((stamp, offset, 0) for offset, stamp in visible if stamp >= target), None)
            assert log.offset_for_timestamp(target) == expected
        newest = max(stamp for _, stamp in visible)
        assert log.max_timestamp() == (newest, next(offset for offset, stamp in visible if stamp == newest), 0)


def test_log_append_time_is_every_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, build_batch([NewRecord(None, b"", timestamp=n) for n in (1, 2)], log_append_time=START_MS))
    append(log, build_batch([NewRecord(None, b"", timestamp=n) for n in (1, 2)], log_append_time=START_MS + 10))
    assert log.offset_for_timestamp(5) == (START_MS, 0, 0)
    assert log.offset_for_timestamp(START_MS + 1) == (START_MS + 10, 2, 0)
    assert log.max_timestamp() == (START_MS + 10, 2, 0)


def test_records_without_timestamps_are_not_found_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.max_timestamp() is None and log.offset_for_timestamp(0) is None
    append(log, batch_of(2, timestamps=[-1, -1]))
    assert log.max_timestamp() is None and log.offset_for_timestamp(0) is None


# --- following --------------------------------------------------------------------------------------------------------
def test_a_follower_appends_the_leaders_batches(tmp_path: Path) -> None:
    (tmp_path / "leader").mkdir()
    (tmp_path / "follower").mkdir()
    leader = open_log(tmp_path / "leader", settings=SMALL)
    append(leader, batch_of(2, producer=(9, 0, 0)), epoch=1)
    append(leader, batch_of(1, producer=(8, 0, 0), transactional=True), epoch=1)
    append(leader, marker(ControlKind.ABORT, 8), epoch=2)
    for _ in range(40):
        append(leader, batch_of(2), epoch=3)
    follower = open_log(tmp_path / "follower", settings=SMALL)
    whole = read_all(leader)
    at = 0
    for size in (read_header(whole).size, 0):  # one batch, then all the rest in one fetch
        end = at + size if size else len(whole)
        follower.appender.append_as_follower(memoryview(whole)[at:end])
        at = end
    assert follower.end_offset == leader.end_offset
    assert read_all(follower) == whole
    assert (
        follower.end.epochs.entries()
        == leader.end.epochs.entries()
        == (EpochEntry(1, 0), EpochEntry(2, 3), EpochEntry(3, 4))
    )
    assert follower.end.producers.snapshot() == leader.end.producers.snapshot()
    assert follower.reader.aborted_transactions(0, 100) == [AbortedTransaction(8, 2, 3, 4)]
    assert len(follower.segments()) > 2
    for offset in range(follower.end_offset):
        assert take(follower.reader.read(offset, max_bytes=1, upto_offset=99)) == take(
            leader.reader.read(offset, max_bytes=1, upto_offset=99)
        )


def test_a_follower_refuses_batches_that_do_not_continue_its_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.appender.append_as_follower(memoryview(placed(batch_of(3), 10, 4)))  # a gap is legal
    assert (log.end_offset, log.epoch_at(12)) == (13, 4)
    sound = placed(batch_of(1), 13, 4)
    damaged = bytearray(sound)
    damaged[-1] ^= 1
    for batches in (placed(batch_of(1), 12, 4), placed(batch_of(1), 13, 3), bytes(damaged), sound[:-1], sound + sound):
        with pytest.raises(CorruptRecord, match="do not continue"):
            log.appender.append_as_follower(memoryview(batches))
        assert log.end_offset == 13
    assert log.appender.append_as_follower(memoryview(sound)) == 14
    assert [take(log.reader.read(offset, max_bytes=1, upto_offset=14)) for offset in (0, 13)] == [
        placed(batch_of(3), 10, 4),
        sound,
    ]


# --- the start of the log ---------------------------------------------------------------------------------------------
def test_log_start_only_rises(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 60)
    log.raise_log_start(40)
    log.raise_log_start(30)
    assert log.log_start_offset == 40
    assert log.end.epochs.entries() == (EpochEntry(1, 40),)
    with pytest.raises(OffsetOutOfRange, match="cannot pass the log end"):
        log.raise_log_start(121)
    assert log.local_start_offset == 0


def test_eviction_drops_whole_closed_segments(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 100)
    bases = [segment.base for segment in log.segments()]
    size = log.size_bytes
    assert evict_below(log, bases[1] - 1) == 0
    state = log.reader.state_at(bases[3])
    assert evict_below(log, bases[3] + 1) == 3
    assert min(name for name in os.listdir(log.directory) if name[0] == "0") >= f"{bases[3]:020d}"
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments()) < size
    assert log.local_start_offset == bases[3]
    assert read_all(log) == b"".join(content[bases[3] // 2 :])
    assert log.reader.state_at(bases[3]) == state
    with pytest.raises(OffsetOutOfRange):
        log.reader.read(bases[3] - 1, max_bytes=1, upto_offset=200)
    assert evict_below(log, 1 << 40) == len(bases) - 4
    assert log.local_start_offset == bases[-1]  # never the newest
    log.close(clean=False)
    again = open_log(tmp_path, settings=SMALL, recovery_point=log.recovery_point)
    assert again.local_start_offset == bases[-1] and again.end_offset == 200
    assert not [name for name in os.listdir(log.directory) if name.endswith(".deleted")]


# --- offloading --------------------------------------------------------------------------------------------------------
def test_offload_sources_tile_the_log(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 60)
    offloaded, start = b"", 0
    while True:
        source = log.reader.offload_source(start, 1 << 40)
        if source is None:
            break
        with open(source.path, "rb") as file:
            offloaded += file.read()[source.position : source.position + source.length]
        assert source.base_offset == start
        start = source.end_offset
    assert start == log.segments()[-1].base
    assert offloaded == b"".join(content[: start // 2])
    rest = log.reader.offload_source(start, 1 << 40, include_active=True)
    assert rest is not None and rest.end_offset == 120


def test_offload_sources_end_at_a_batch(tmp_path: Path) -> None:
    log, content = filled(tmp_path, 60)
    size = len(content[0])
    source = log.reader.offload_source(3, 9)
    assert source is not None
    assert (source.position, source.length, source.base_offset, source.end_offset) == (size, 3 * size, 2, 8)
    assert log.reader.offload_source(4, 5) is None
    assert log.reader.offload_source(119, 200) is None


@pytest.mark.parametrize("offset", [0, 2, 30, 64, 119, 120])
def test_the_producer_state_at_any_batch_is_that_of_the_batches_below(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path, settings=SMALL)
    expected = ProducerStateManager()
    for number in range(120):
        batch = batch_of(1, producer=(number % 3, 0, number // 3))
        if number < offset:
            expected.update(read_header(batch), number, now_ms=START_MS)
        append(log, batch)
    assert log.reader.state_at(offset) == expected.state()
    log.close(clean=True)
    assert open_log(tmp_path, settings=SMALL, clean=True).reader.state_at(offset) == expected.state()


def test_aborted_transactions_that_overlap_a_range_are_found(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings=SMALL)
    entries = []
    for number in range(12):
        first = append(log, batch_of(1, producer=(number, 0, 0), transactional=True))
        append(log, batch_of(3))
        kind = ControlKind.ABORT if number % 2 else ControlKind.COMMIT
        last = append(log, marker(kind, number))
        if number % 2:
            entries.append(AbortedTransaction(number, first, last, last + 1))
    for clean in (None, True, False):
        if clean is not None:
            log.close(clean=clean)
            log = open_log(tmp_path, settings=SMALL, clean=clean)
        for start, end in ((0, 100), (7, 8), (10, 30), (9, 10), (5, 6), (40, 60)):
            expected = [each for each in entries if each.last_offset >= start and each.first_offset < end]
            assert log.reader.aborted_transactions(start, end) == expected


# --- identity ---------------------------------------------------------------------------------------------------------
def test_another_topics_directory_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close(clean=True)
    path = Path(log.directory) / "partition.metadata"
    assert path.read_text() == f"version: 0\ntopic_id: {log.topic_id}"
    path.write_text(f"version: 0\ntopic_id: {TopicId(bytes(16))}")
    with pytest.raises(InconsistentTopicId, match="belongs to topic id"):
        open_log(tmp_path, clean=True)


def test_an_unreadable_closed_segment_is_not_treated_as_empty(tmp_path: Path) -> None:
    log, _ = filled(tmp_path, 100)
    log.close(clean=True)
    before = log.segments()
    path = Path(before[1].path)
    path.with_suffix(".index").unlink()
    content = path.read_bytes()
    log = open_log(tmp_path, settings=SMALL, clean=True)
    path.write_bytes(content[:1000] + bytes(len(content) - 1000))
    for _ in range(2):
        with pytest.raises(StorageError):
            log.segments()
        with pytest.raises(StorageError):
            log.offset_for_timestamp(before[1].max_timestamp)
    path.write_bytes(content)
    assert [segment[:5] for segment in map(astuple, log.segments())] == [
        segment[:5] for segment in map(astuple, before)
    ]
    found = log.offset_for_timestamp(before[1].max_timestamp)
    assert found is not None
    assert found.offset == before[1].max_timestamp_offset
