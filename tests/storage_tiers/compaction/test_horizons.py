"""Delete horizons over several cleanings, and markers that outlive them: a tombstone goes in time, and never too early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.builder import ControlKind
from tests.storage_tiers.compaction.support import LATER_MS, batch, batch_headers, clean, closed, horizons, pairs, write
from tests.storage_tiers.hot.support import START_MS, marker, open_log

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=100)


@pytest.fixture
def log(tmp_path: Path) -> HotLog:
    return open_log(tmp_path, settings=SETTINGS)


def test_a_horizon_stays_when_cleanings_follow_before_it(log: HotLog) -> None:
    """If each cleaning moved the horizon, a log that is cleaned more often than `delete.retention.ms` would keep its
    tombstones."""
    write(log, batch(("a", None)), batch(("b", "1")))
    closed(log)
    for now_ms in (0, 400, 999):
        clean(log, now_ms=START_MS + now_ms, delete_retention_ms=1000)
        assert horizons(log) == [(0, 1000)]
    clean(log, now_ms=START_MS + 1000, delete_retention_ms=1000)
    assert pairs(log) == [(1, "b", "1")]


def test_a_horizon_that_is_over_removes_nothing_while_older_records_may_be_elsewhere(log: HotLog) -> None:
    """Older records of the key may be in the other tier, as after its clean point was lost."""
    write(log, batch(("a", None)))
    write(log, marker(ControlKind.COMMIT, 9), batch(("z", "1"), producer=(9, 0, 0)))  # a transaction without data
    closed(log)
    clean(log, delete_retention_ms=1000)
    assert [base for base, _ in horizons(log)] == [0, 1]
    clean(log, now_ms=LATER_MS, drops_below=0)
    assert [base for base, _, _ in batch_headers(log)] == [0, 1, 2]
    clean(log, now_ms=LATER_MS, drops_below=1)
    assert [base for base, _, _ in batch_headers(log)] == [1, 2]


def test_no_tombstone_above_the_map_of_keys_gets_a_horizon(log: HotLog) -> None:
    write(log, *(batch((f"k{number}", None)) for number in range(8)))
    closed(log)
    reached = clean(log, delete_retention_ms=1000, most_keys=2)
    assert 0 < reached < 8
    assert [base for base, _ in horizons(log)] == list(range(reached))


def test_the_marker_that_a_producer_is_known_by_stays_though_emptied_and_begins_no_transaction(log: HotLog) -> None:
    """In transaction version 2 the marker begins the producer's next epoch, which no data batch has."""
    write(log, batch(("a", "1"), producer=(7, 0, 0), transactional=True), marker(ControlKind.COMMIT, 7, 1))
    write(log, batch(("a", "2")), batch(("z", "1")))
    closed(log)
    for now_ms in (START_MS, LATER_MS, LATER_MS):
        clean(log, now_ms=now_ms)
    assert batch_headers(log)[0] == (1, 1, 0)
    directory = log.directory
    log.close(clean=False)
    for name in os.listdir(directory):
        if name.endswith(".snapshot"):
            os.unlink(os.path.join(directory, name))
    log = open_log(os.path.dirname(directory), settings=SETTINGS)
    assert log.end.producers.first_unstable_offset is None
    assert not log.end.producers.is_in_transaction(7, 1)
