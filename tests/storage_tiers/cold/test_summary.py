"""The summary of a root, and what is held of ranges in memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks.history import synthetic
from storage_tiers.cold.manifest.lineage import seen_of
from storage_tiers.cold.manifest.model import Condemned, Entry, Ids, PageRef, Pin, Removed, Root, Stamp
from storage_tiers.cold.manifest.summary import summary_of
from storage_tiers.cold.manifest.transitions import first_root
from storage_tiers.cold.read.known_ranges import ENTRY_BYTES, MAX_RUNS, KnownRanges, cost, entry_of
from storage_tiers.types import TopicId

IDS = [Ids("c", "t", TopicId(bytes(16)), number) for number in range(8)]


@pytest.fixture(scope="module")
def root() -> Root:
    return synthetic(100_000)[0]


def test_it_says_of_the_live_ranges_what_the_root_does(root: Root) -> None:
    summary = summary_of(root)
    live: list[PageRef | Entry] = [*root.live_pages, *root.entries]
    assert summary.ranges == sum(ref.count for ref in root.live_pages) + len(root.entries)
    assert summary.records == sum(each.records for each in live)
    assert summary.bytes == sum(each.bytes for each in live)
    assert summary.oldest == root.live_pages[0].oldest
    assert summary.paged
    assert (summary.log_start, summary.end) == (root.log_start, root.end)
    assert summary.is_of(root)


def test_its_digest_is_that_of_the_root(root: Root) -> None:
    assert summary_of(root).seen("somewhere") == seen_of(root, "somewhere")
    assert summary_of(first_root(IDS[0])).seen() is None


def test_a_sweep_is_due_when_the_oldest_removal_that_no_pin_holds_has_stood_for_the_grace(root: Root) -> None:
    (entry, *_) = root.entries
    entry = replace(entry, added=Stamp(5, 0))
    root = replace(root, pages=())
    assert not summary_of(root).sweep_is_due(1 << 60, 0)
    removed = replace(root, removed=(Removed(Stamp(9, 2_000), entry), Removed(Stamp(10, 3_000), key="old page")))
    assert [summary_of(removed).sweep_is_due(now, 500) for now in (2_499, 2_500)] == [False, True]
    pinned = replace(removed, pins=(Pin("p", 6, 0, 10),))
    assert [summary_of(pinned).sweep_is_due(now, 500) for now in (3_499, 3_500)] == [False, True]
    condemned = replace(root, condemned=(Condemned("orphan", Stamp(9, 2_000)),))
    assert summary_of(condemned).sweep_is_due(0, 500)


def test_what_was_used_longest_ago_goes_first(root: Root) -> None:
    known = KnownRanges(3 * cost(root))
    for ids in IDS[:3]:
        known.keep_root(ids, root)
    assert known.root(IDS[0]) is root
    known.keep_root(IDS[3], root)
    assert [known.root(ids) is not None for ids in IDS[:4]] == [True, False, True, True]
    assert known.bytes == 3 * cost(root)


def test_runs_count_and_go_with_their_partition(root: Root) -> None:
    run = tuple(neighbours(64))
    known = KnownRanges(MAX_RUNS * 64 * ENTRY_BYTES + cost(root))
    known.keep_root(IDS[1], root)
    for number in range(MAX_RUNS + 1):
        known.keep_run(IDS[0], f"page {number}", 0, run)
    assert known.bytes == MAX_RUNS * 64 * ENTRY_BYTES + cost(root)
    assert known.run(IDS[0], "page 0", 5) == ()
    found = known.run(IDS[0], "page 1", 5)
    assert entry_of(found, 5).base <= 5 < entry_of(found, 5).end
    assert known.run(IDS[0], "page 1", run[-1].end) == ()
    known.keep_run(IDS[2], "another", 0, run)
    assert known.root(IDS[1]) is None
    known.forget(IDS[0])
    known.forget(IDS[2])
    assert (known.bytes, len(known)) == (0, 0)


def test_a_root_that_was_replaced_is_kept_only_where_the_old_one_was(root: Root) -> None:
    known = KnownRanges()
    known.renew(IDS[0], root)
    assert known.root(IDS[0]) is None
    known.keep_root(IDS[0], first_root(IDS[0]))
    known.renew(IDS[0], root)
    assert known.root(IDS[0]) is root
    assert known.bytes == cost(root)


def neighbours(count: int) -> list[Entry]:
    (entry, *_) = synthetic(24)[0].entries
    spans = itertools.pairwise(range(0, 10 * count + 1, 10))
    return [replace(entry, base=base, end=end) for base, end in spans]
