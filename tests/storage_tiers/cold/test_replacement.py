"""One rewritten segment replaces its neighbours: in the manifest, in a page, and across both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from storage_tiers.cold.manifest import lookup
from storage_tiers.cold.manifest.model import (
    Author,
    Manifest,
    ManifestPage,
    PageKind,
    PageRef,
    RemoteSegment,
    Removed,
)
from storage_tiers.cold.manifest.pages import ManifestChange, page_write
from storage_tiers.cold.manifest.replacement import replace_segments
from storage_tiers.cold.manifest.transitions import broken, broken_step, first_manifest
from storage_tiers.errors import InvalidRequest
from tests.storage_tiers.cold.support import IDS, segment_of
from tests.storage_tiers.cold.test_manifest_transitions import by, extended

SEGMENTS = [segment_of(IDS, 10 * n, 10 * n + 10, n + 1) for n in range(8)]


def whole() -> Manifest:
    manifest = first_manifest(IDS)
    for segment in SEGMENTS:
        manifest = extended(manifest, segment)
    return manifest


def paged(*sizes: int) -> tuple[Manifest, Mapping[str, ManifestPage]]:
    """A manifest whose oldest segments are in pages of these sizes, and the pages."""
    manifest, pages = whole(), dict[str, ManifestPage]()
    refs: list[PageRef] = []
    at = 0
    for size in sizes:
        page = ManifestPage(PageKind.LIVE, manifest.segments[at : at + size])
        write = page_write(IDS, page, author({}, 500 + at))
        refs.append(write.ref)
        pages[write.ref.key] = page
        at += size
    return replace(manifest, segments=manifest.segments[at:], pages=tuple(refs)), pages


def author(pages: Mapping[str, ManifestPage], first: int = 900) -> Author:
    numbers = iter(range(first, first + 100))
    return replace(by(50), new_uuid=lambda: f"{next(numbers):032x}", pages=pages)


def rewritten(first: int, last: int) -> RemoteSegment:
    return segment_of(IDS, 10 * first, 10 * last, 77, size=300)


def live(change: ManifestChange, pages: Mapping[str, ManifestPage]) -> list[tuple[int, int, str]]:
    known = {**pages, **{write.ref.key: write.page for write in change.writes}}
    return [(each.base, each.end, each.key) for each in lookup._all_live(change.manifest, lambda ref: known[ref.key])]


@pytest.mark.parametrize("sizes", [(), (8 - 1,), (3,), (2, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 7), (1, 3), (2, 5), (3, 4), (6, 7)])
def test_the_live_segments_are_the_others_and_the_new_one(sizes: tuple[int, ...], first: int, last: int) -> None:
    manifest, pages = paged(*sizes)
    old, new = SEGMENTS[first:last], rewritten(first, last)
    change = replace_segments(manifest, old, new, author(pages))
    expected = [(each.base, each.end, each.key) for each in (*SEGMENTS[:first], new, *SEGMENTS[last:])]
    assert live(change, pages) == expected
    assert broken(change.manifest) is None
    assert broken_step(manifest, change.manifest) is None
    removed = [item.segment.key for item in change.manifest.removed if item.segment is not None]
    assert removed == [each.key for each in old]
    gone = {item.key for item in change.manifest.removed if item.segment is None}
    assert gone == {ref.key for ref in manifest.pages} - {ref.key for ref in change.manifest.pages}
    for name in ("end", "log_start", "leader_epoch", "sidecar", "last_record_epoch"):
        assert getattr(change.manifest, name) == getattr(manifest, name), name
    stamps = [
        each.added for each in lookup._all_live(change.manifest, lambda ref: {**pages, **_pages(change)}[ref.key])
    ]
    assert stamps[first].commit == change.manifest.commit == manifest.commit + 1


def _pages(change: ManifestChange) -> dict[str, ManifestPage]:
    return {write.ref.key: write.page for write in change.writes}


@pytest.mark.parametrize("sizes", [(), (3,)])
def test_pages_of_segments_that_were_removed_before_stay(sizes: tuple[int, ...]) -> None:
    """Only these pages lead the sweep to the removed segments' objects."""
    manifest, pages = paged(*sizes)
    gone = segment_of(IDS, 0, 10, 66)
    before = page_write(
        IDS, ManifestPage(PageKind.REMOVED, removed=(Removed(gone.added, gone),)), author({}, first=700)
    )
    manifest = replace(manifest, pages=(*manifest.pages, before.ref))
    change = replace_segments(manifest, SEGMENTS[1:3], rewritten(1, 3), author(pages))
    assert change.manifest.removed_pages == (before.ref,)
    assert before.ref.key in set(change.manifest.keys())


def test_a_gap_below_log_start_stays_known() -> None:
    manifest = replace(whole(), log_start=40)
    gap = replace(SEGMENTS[4], base=42, gap_from=40)
    manifest = replace(manifest, segments=(*manifest.segments[:4], gap, *manifest.segments[5:]), log_start=42)
    assert broken(manifest) is None
    new = segment_of(IDS, 42, 60, 77)
    change = replace_segments(manifest, [gap, manifest.segments[5]], new, by(50))
    assert broken(change.manifest) is None
    assert change.manifest.segments[4].gap_from == 40


def test_wrong_replacements_are_refused() -> None:
    manifest, pages = paged(3)
    with pytest.raises(InvalidRequest, match="has other offsets"):
        replace_segments(manifest, SEGMENTS[1:3], rewritten(1, 2), author(pages))
    with pytest.raises(InvalidRequest, match="has other offsets"):
        replace_segments(manifest, [], rewritten(1, 2), author(pages))
    with pytest.raises(InvalidRequest, match="is the newest segment"):
        replace_segments(manifest, SEGMENTS[6:8], rewritten(6, 8), author(pages))
    with pytest.raises(InvalidRequest, match="is already in the manifest"):
        replace_segments(manifest, SEGMENTS[1:3], replace(rewritten(1, 3), key=SEGMENTS[5].key), author(pages))
    for old in (
        [SEGMENTS[1], SEGMENTS[3]],
        [replace(SEGMENTS[1], key="other"), SEGMENTS[2], SEGMENTS[3]],
        [SEGMENTS[1], replace(SEGMENTS[3], key="other")],
    ):
        with pytest.raises(InvalidRequest, match="are no longer the live ones"):
            replace_segments(manifest, old, rewritten(1, 4), author(pages))
    folded = replace(manifest, pages=(replace(manifest.pages[0], level=1),))
    with pytest.raises(InvalidRequest, match="page of level 1"):
        replace_segments(folded, SEGMENTS[1:3], rewritten(1, 3), author(pages))
