"""The summary of a manifest, and the segments that are kept in memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks.history import synthetic
from storage_tiers.cold.manifest.lineage import seen_of
from storage_tiers.cold.manifest.model import Ids, Manifest, PageRef, Pin, RemoteSegment, Removed, Stamp, TombstonedKey
from storage_tiers.cold.manifest.summary import summary_of
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.read.known_segments import MAX_RUNS, SEGMENT_BYTES, KnownSegments, cost, segment_of
from storage_tiers.types import TopicId

IDS = [Ids("c", "t", TopicId(bytes(16)), number) for number in range(8)]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return synthetic(100_000)[0]


def test_the_summary_equals_the_manifest_for_live_segments(manifest: Manifest) -> None:
    summary = summary_of(manifest)
    live: list[PageRef | RemoteSegment] = [*manifest.live_pages, *manifest.segments]
    assert summary.segments == sum(ref.count for ref in manifest.live_pages) + len(manifest.segments)
    assert summary.records == sum(each.records for each in live)
    assert summary.bytes == sum(each.bytes for each in live)
    assert summary.oldest == manifest.live_pages[0].oldest
    assert summary.paged
    assert (summary.log_start, summary.end) == (manifest.log_start, manifest.end)
    assert summary.is_of(manifest)


def test_its_digest_is_that_of_the_manifest(manifest: Manifest) -> None:
    assert summary_of(manifest).seen("somewhere") == seen_of(manifest, "somewhere")
    assert summary_of(first_manifest(IDS[0])).seen() is None


def test_a_sweep_is_due_when_the_oldest_removal_that_no_pin_holds_has_stood_for_the_grace(manifest: Manifest) -> None:
    (segment, *_) = manifest.segments
    segment = replace(segment, added=Stamp(5, 0))
    manifest = replace(manifest, pages=())
    assert not summary_of(manifest).sweep_is_due(1 << 60, 0)
    removed = replace(manifest, removed=(Removed(Stamp(9, 2_000), segment), Removed(Stamp(10, 3_000), key="old page")))
    assert [summary_of(removed).sweep_is_due(now, 500) for now in (2_499, 2_500)] == [False, True]
    pinned = replace(removed, pins=(Pin("p", 6, 0, 10),))
    assert [summary_of(pinned).sweep_is_due(now, 500) for now in (3_499, 3_500)] == [False, True]
    tombstoned = replace(manifest, tombstoned=(TombstonedKey("orphan", Stamp(9, 2_000)),))
    assert summary_of(tombstoned).sweep_is_due(0, 500)


def test_the_least_recently_used_entry_goes_first(manifest: Manifest) -> None:
    known = KnownSegments(3 * cost(manifest))
    for ids in IDS[:3]:
        known.keep_manifest(ids, manifest)
    assert known.manifest(IDS[0]) is manifest
    known.keep_manifest(IDS[3], manifest)
    assert [known.manifest(ids) is not None for ids in IDS[:4]] == [True, False, True, True]
    assert known.bytes == 3 * cost(manifest)


def test_runs_are_counted_and_dropped_with_their_partition(manifest: Manifest) -> None:
    run = tuple(neighbours(64))
    known = KnownSegments(MAX_RUNS * 64 * SEGMENT_BYTES + cost(manifest))
    known.keep_manifest(IDS[1], manifest)
    for number in range(MAX_RUNS + 1):
        known.keep_run(IDS[0], f"page {number}", 0, run)
    assert known.bytes == MAX_RUNS * 64 * SEGMENT_BYTES + cost(manifest)
    assert known.run(IDS[0], "page 0", 5) == ()
    found = known.run(IDS[0], "page 1", 5)
    assert segment_of(found, 5).base <= 5 < segment_of(found, 5).end
    assert known.run(IDS[0], "page 1", run[-1].end) == ()
    known.keep_run(IDS[2], "another", 0, run)
    assert known.manifest(IDS[1]) is None
    known.forget(IDS[0])
    known.forget(IDS[2])
    assert (known.bytes, len(known)) == (0, 0)


def test_a_manifest_that_was_replaced_is_kept_only_where_the_old_one_was(manifest: Manifest) -> None:
    known = KnownSegments()
    known.renew(IDS[0], manifest)
    assert known.manifest(IDS[0]) is None
    known.keep_manifest(IDS[0], first_manifest(IDS[0]))
    known.renew(IDS[0], manifest)
    assert known.manifest(IDS[0]) is manifest
    assert known.bytes == cost(manifest)


def neighbours(count: int) -> list[RemoteSegment]:
    (segment, *_) = synthetic(24)[0].segments
    spans = itertools.pairwise(range(0, 10 * count + 1, 10))
    return [replace(segment, base=base, end=end) for base, end in spans]
