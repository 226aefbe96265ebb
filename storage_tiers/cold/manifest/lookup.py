"""Lookups in a manifest: the segment that holds an offset or a time, the segments live at a commit or added since.

Pure: pages come from `load_page`, which either reads the store (blocking tools) or raises `PageNeeded`; `CommitLoop.look` then
fetches the page and runs the lookup again. A page is loaded only if its offsets or times can matter.

Invariants: a segment wholly below log start is never returned by a lookup of live ones; one that contains log start is
returned, and the reader skips its first records. Not promised: that a segment's objects still exist when they are read. A 404
means that the manifest is outdated: load it again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator

from storage_tiers.cold.manifest.model import (
    Manifest,
    ManifestPage,
    PageRef,
    RemoteSegment,
    Removed,
)
from storage_tiers.errors import InvalidRequest, OffsetOutOfRange

LoadPage = Callable[[PageRef], ManifestPage]


def leaves(
    refs: Iterable[PageRef], load_page: LoadPage, wanted: Callable[[PageRef], bool] = lambda ref: True
) -> Iterator[PageRef]:
    """The pages of segments among and below `refs` for which `wanted` is true, in order. A page of level 1 is loaded only if
    `wanted` is true for it as well: its bounds cover all its pages."""
    for ref in refs:
        if wanted(ref):
            if ref.level:
                yield from leaves(load_page(ref).pages, load_page, wanted)
            else:
                yield ref


def live_segments(manifest: Manifest, load_page: LoadPage, start: int = 0) -> Iterator[RemoteSegment]:
    """Live segments with an offset at or above both `start` and log start, in offset order."""
    start = max(start, manifest.log_start)
    for ref in leaves(manifest.live_pages, load_page, lambda ref: ref.end > start):
        segments = load_page(ref).segments
        yield from segments[_first_after(segments, start) :]
    yield from manifest.segments[_first_after(manifest.segments, start) :]


def segments_for(manifest: Manifest, load_page: LoadPage, offset: int) -> Iterator[RemoteSegment]:
    """The live segments, beginning with the one that holds `offset`. There are none if `offset` is at or past the end. Raises
    OffsetOutOfRange below log start."""
    if offset < manifest.log_start:
        raise OffsetOutOfRange(
            f"{manifest.ids}: offset {offset} is below log start {manifest.log_start}; read from there"
        )
    return live_segments(manifest, load_page, offset)


def segment_for(manifest: Manifest, load_page: LoadPage, offset: int) -> RemoteSegment | None:
    """The live segment that holds `offset`, or None at or past the end. Raises OffsetOutOfRange below log start."""
    return next(segments_for(manifest, load_page, offset), None)


def segments_for_timestamp(manifest: Manifest, load_page: LoadPage, timestamp: int) -> Iterator[RemoteSegment]:
    """Live segments that hold a record at or after `timestamp` (ms), in offset order.

    The first such record is in the first of these segments. If all such records of that segment lie below log start, the first
    record is in the next segment.
    """
    for ref in leaves(
        manifest.live_pages, load_page, lambda ref: ref.end > manifest.log_start and ref.max_timestamp >= timestamp
    ):
        for segment in load_page(ref).segments:
            if segment.end > manifest.log_start and segment.max_timestamp >= timestamp:
                yield segment
    for segment in manifest.segments:
        if segment.end > manifest.log_start and segment.max_timestamp >= timestamp:
            yield segment


def state_at(manifest: Manifest, load_page: LoadPage, commit: int) -> list[RemoteSegment]:
    """The segments that were live right after `commit`, in offset order. Raises InvalidRequest for a future commit, or if
    segments removed since may have been swept and no pin is at that commit."""
    if commit > manifest.commit:
        raise InvalidRequest(f"{manifest.ids} has reached commit {manifest.commit}, not {commit}")
    if commit < manifest.swept and all(pin.commit != commit for pin in manifest.pins):
        raise InvalidRequest(
            f"{manifest.ids}: segments removed up to commit {manifest.swept} have been swept, and commit {commit} is not pinned"
        )
    live = [segment for segment in _all_live(manifest, load_page) if segment.added.commit <= commit]
    gone = (item for item in _all_removed(manifest, load_page, commit) if item.at.commit > commit)
    live.extend(item.segment for item in gone if item.segment is not None and item.segment.added.commit <= commit)
    return sorted(live, key=lambda segment: segment.base)


def added_after(manifest: Manifest, load_page: LoadPage, cursor: int) -> list[RemoteSegment]:
    """Live segments that a commit after `cursor` added, in order of commit and offset. Segments that were removed again are
    left out; a reader whose cursor is below `manifest.swept` may have missed some for good."""
    added = (
        segment
        for segments in _segment_lists(
            manifest, load_page, lambda ref: ref.last_commit > cursor and ref.end > manifest.log_start
        )
        for segment in segments
        if segment.added.commit > cursor and segment.end > manifest.log_start
    )
    return sorted(added, key=lambda segment: (segment.added.commit, segment.base))


def live_bytes(manifest: Manifest) -> int:
    """Bytes of all live segments, without loading a page."""
    return sum(ref.bytes for ref in manifest.live_pages) + sum(segment.bytes for segment in manifest.segments)


def _first_after(segments: tuple[RemoteSegment, ...], start: int) -> int:
    return bisect.bisect_right(segments, start, key=lambda segment: segment.end)


def _segment_lists(
    manifest: Manifest, load_page: LoadPage, wanted: Callable[[PageRef], bool]
) -> Iterator[tuple[RemoteSegment, ...]]:
    for ref in leaves(manifest.live_pages, load_page, wanted):
        yield load_page(ref).segments
    yield manifest.segments


def _all_live(manifest: Manifest, load_page: LoadPage) -> Iterator[RemoteSegment]:
    for segments in _segment_lists(manifest, load_page, lambda ref: True):
        yield from segments


def _all_removed(manifest: Manifest, load_page: LoadPage, after: int) -> Iterator[Removed]:
    """Removed items: all that were removed after commit `after`, and possibly others."""
    for ref in leaves(manifest.removed_pages, load_page, lambda ref: ref.last_commit > after):
        yield from load_page(ref).removed
    yield from manifest.removed
