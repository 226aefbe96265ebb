"""Corrupt objects are not requested again at once: a bounded number of them is remembered, each for a while."""

from __future__ import annotations

from storage_tiers.cold.read.recently_corrupt import CORRUPT_S, MOST, RecentlyCorrupt
from storage_tiers.errors import TierCorrupt
from tests.support.clock import ManualClock


def is_refused(known: RecentlyCorrupt, name: str) -> bool:
    try:
        known.check(name)
    except TierCorrupt:
        return True
    return False


def test_a_failure_is_refused_from_the_second_in_a_row_on_and_for_a_while() -> None:
    clock = ManualClock()
    known = RecentlyCorrupt(clock)
    seen = []
    for _ in range(2):
        known.note("a", TierCorrupt("damaged"))
        seen.append(is_refused(known, "a"))
    clock.advance(CORRUPT_S)
    seen.append(is_refused(known, "a"))
    known.forget("a")
    known.note("a", TierCorrupt("damaged"))
    seen.append(is_refused(known, "a"))
    assert seen == [False, True, False, False]


def test_the_object_that_failed_longest_ago_is_forgotten_first() -> None:
    known = RecentlyCorrupt(ManualClock())
    for name in ("a", "b", "a", "b", "a"):
        known.note(name, TierCorrupt("damaged"))
    for number in range(MOST - 1):
        known.note(str(number), TierCorrupt("damaged"))
    assert (is_refused(known, "a"), is_refused(known, "b")) == (True, False)
    known.note("one more", TierCorrupt("damaged"))
    assert not is_refused(known, "a")
