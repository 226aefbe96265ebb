"""The cleaner process's side of one cleaning, step by step: what it may do to a log, and when it waits for the broker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_tiers.compaction.batches import Cleaned
from storage_tiers.compaction.cleaning_inputs import cleaning_of
from storage_tiers.compaction.main import run
from storage_tiers.compaction.offset_map import SLOT_BYTES
from storage_tiers.compaction.protocol import CONTINUE, CleanerAnswer, CleaningRequest, KeysRead
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.settings import LogSettings
from storage_tiers.hot.swap import RewrittenSegment
from tests.storage_tiers.compaction.support import KEY, batch, closed, horizons, swap_in, write
from tests.storage_tiers.hot.support import START_MS, open_log
from tests.support.clock import ManualClock

SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=100)
MIB = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> HotLog:
    return open_log(tmp_path, settings=SETTINGS)


def request_of(log: HotLog, *, map_bytes: int = MIB, fences: tuple[int, ...] = ()) -> CleaningRequest:
    begin = cleaning_of(log, dirty_start=0, end=log.active_start_offset, fences=fences)
    assert begin is not None
    return CleaningRequest(
        cleaning=begin(),
        producers={},
        now_ms=START_MS,
        delete_retention_ms=1000,
        drops_below=1 << 62,
        map_bytes=map_bytes,
        map_load=0.5,
        bytes_per_second=0,
        key=KEY,
    )


def test_no_tombstone_above_the_map_of_keys_gets_a_horizon(log: HotLog) -> None:
    """This cleaning does not remove the older values of the tombstone's key, which would return once the tombstone is gone."""
    write(log, *(batch((f"k{number}", None)) for number in range(8)))
    closed(log)
    reached: list[int] = []

    def answer(said: CleanerAnswer) -> None:
        if isinstance(said, KeysRead):
            reached.append(said.offset)
        if isinstance(said, RewrittenSegment):
            assert swap_in(log, said)

    run(request_of(log, map_bytes=6 * SLOT_BYTES), answer, lambda: CONTINUE, ManualClock(START_MS))
    assert 0 < reached[0] < 8
    assert [base for base, _ in horizons(log)] == list(range(reached[0]))


def test_each_group_of_segments_is_written_once_the_broker_continues(log: HotLog) -> None:
    """While the broker swaps in one group of segments, at most one more rewritten group is on its disk."""
    for value in ("1", "2", "3"):
        write(log, batch(("a", value), ("b", value)))
        closed(log)
    steps: list[object] = []

    def answer(said: CleanerAnswer) -> None:
        steps.append(said.base if isinstance(said, RewrittenSegment) else type(said))

    def next_line() -> bytes:
        steps.append(sum(name.endswith(".log.cleaned") for name in os.listdir(log.directory)))
        return CONTINUE

    run(request_of(log, fences=(2, 4)), answer, next_line, ManualClock(START_MS))
    # The last segment is left as it is.
    assert steps == [KeysRead, 0, 0, 1, 2, 2, Cleaned]
