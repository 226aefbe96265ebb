"""The part of a log that the cleaner cleans next: the dirty part, its bounds, and when it is due."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from storage_tiers.policy.compaction import CleaningLimits, CleaningPlan, plan_cleaning

NOW_MS = 1_000_000
NEVER = (1 << 63) - 1
EVERYTHING = 1 << 62


class Seg(NamedTuple):
    """`first_ms` is the timestamp of its first batch."""

    base: int
    end: int
    size_bytes: int
    max_timestamp: int = 0
    active: bool = False
    first_append_ms: int = 0
    first_ms: int = 0


#: Offsets 0 to 40; the timestamps of records are 100, 200 and 300 ms; the newest segment is active.
LOG = (Seg(0, 10, 1000, 100), Seg(10, 20, 300, 200), Seg(20, 30, 200, 300), Seg(30, 40, 5000, 400, active=True))


def planned(
    segments: tuple[Seg, ...] = LOG,
    *,
    cleaned_to: int = 0,
    bound: int = EVERYTHING,
    now_ms: int = NOW_MS,
    min_lag_ms: int = 0,
    max_lag_ms: int = NEVER,
    min_ratio: float = 0.5,
) -> CleaningPlan | None:
    return plan_cleaning(
        segments,
        cleaned_to=cleaned_to,
        bound=bound,
        now_ms=now_ms,
        limits=CleaningLimits(min_lag_ms, max_lag_ms, min_ratio),
        first_timestamp=lambda segment: segment.first_ms,
    )


@pytest.mark.parametrize(
    ("cleaned_to", "bound", "expected"),
    [
        (0, EVERYTHING, (0, 30, 0, 1500)),
        (10, EVERYTHING, (10, 30, 1000, 500)),
        (15, EVERYTHING, (15, 30, 1000, 500)),  # a segment that a full map left half clean is dirty
        (20, EVERYTHING, (20, 30, 1300, 200)),
        (29, EVERYTHING, (29, 30, 1300, 200)),
        (30, EVERYTHING, None),
        (0, 30, (0, 30, 0, 1500)),
        (0, 29, (0, 20, 0, 1300)),  # only whole segments below the last stable offset
        (0, 20, (0, 20, 0, 1300)),
        (0, 9, None),
        (10, 20, (10, 20, 1000, 300)),
        (10, 19, None),
    ],
)
def test_the_dirty_part_of_a_log_is_planned_up_to_its_bound(
    cleaned_to: int, bound: int, expected: tuple[int, int, int, int] | None
) -> None:
    plan = planned(cleaned_to=cleaned_to, bound=bound)
    assert (plan and plan[:4]) == expected


def test_a_log_that_begins_above_the_clean_point_is_dirty_from_its_beginning() -> None:
    plan = planned(LOG[1:], cleaned_to=5)
    assert plan is not None
    assert plan[:4] == (10, 30, 0, 500)


def test_an_empty_log_and_one_of_an_active_segment_are_clean() -> None:
    assert planned(()) is None
    assert planned(LOG[-1:]) is None


@pytest.mark.parametrize(
    ("cleaned_to", "bytes_clean", "bytes_dirty", "min_ratio", "is_due"),
    [
        (0, 0, 1500, 0.99, True),
        (0, 0, 1500, 1.0, False),
        (10, 1000, 500, 500 / 1500, False),  # a log is due above the ratio, not at it
        (10, 1000, 500, 0.3333, True),
        (20, 1300, 200, 0.0, True),
        (20, 1300, 200, 0.5, False),
    ],
)
def test_a_log_is_due_once_more_than_a_share_is_dirty(
    cleaned_to: int, bytes_clean: int, bytes_dirty: int, min_ratio: float, is_due: bool
) -> None:
    plan = planned(cleaned_to=cleaned_to, min_ratio=min_ratio)
    assert plan is not None
    assert plan.dirty_ratio == bytes_dirty / (bytes_clean + bytes_dirty)
    assert plan.is_due is is_due


def test_a_log_without_bytes_is_not_due() -> None:
    plan = planned((Seg(0, 10, 0),), min_ratio=0.0)
    assert plan is not None
    assert (plan.dirty_ratio, plan.is_due) == (0.0, False)


@pytest.mark.parametrize(
    ("min_lag_ms", "end"),
    [
        (0, 30),
        (1, 30),
        (100, 30),  # timestamp 300 is 100 ms ago: old enough
        (101, 20),  # the segments below a young one are dirty
        (200, 20),
        (201, 10),
        (300, 10),
        (301, None),
    ],
)
def test_a_segment_with_a_young_record_ends_the_dirty_part(min_lag_ms: int, end: int | None) -> None:
    plan = planned(now_ms=400, min_lag_ms=min_lag_ms)
    assert (plan and plan.end) == end


def test_without_a_least_age_a_record_of_the_future_is_dirty() -> None:
    plan = planned(now_ms=50)
    assert plan is not None
    assert plan.end == 30


def test_a_young_record_below_the_clean_point_does_not_matter() -> None:
    """The record's segment was cleaned before min.compaction.lag.ms was raised."""
    log = (Seg(0, 10, 1000, 900), *LOG[1:])
    plan = planned(log, cleaned_to=10, now_ms=1000, min_lag_ms=200)
    assert plan is not None
    assert plan[:4] == (10, 30, 1000, 500)


@pytest.mark.parametrize(
    ("now_ms", "first_ms", "overdue_ms"),
    [
        (1199, 200, 0),
        (1200, 200, 0),
        (1201, 200, 1),
        (5000, 200, 3800),
        (5000, 0, 0),  # no timestamp
        (5000, -1, 0),
    ],
)
def test_a_log_is_due_once_its_oldest_dirty_record_is_too_old(now_ms: int, first_ms: int, overdue_ms: int) -> None:
    log = (LOG[0]._replace(first_ms=1), LOG[1]._replace(first_ms=first_ms), *LOG[2:])
    plan = planned(log, cleaned_to=10, now_ms=now_ms, max_lag_ms=1000, min_ratio=1.0)
    assert plan is not None
    assert (plan.overdue_ms, plan.is_overdue, plan.is_due) == (overdue_ms, overdue_ms > 0, overdue_ms > 0)


def test_no_file_is_read_for_a_log_without_a_greatest_age() -> None:
    def unexpected(_: Seg) -> int:
        raise AssertionError

    limits = CleaningLimits(0, NEVER, 0.5)
    args = {"cleaned_to": 0, "bound": EVERYTHING, "now_ms": NOW_MS, "limits": limits}
    assert plan_cleaning(LOG, first_timestamp=unexpected, **args) is not None  # type: ignore[arg-type]
