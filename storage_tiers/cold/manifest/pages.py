"""Transitions that keep a manifest small: they move segments between the manifest and its pages.

    Manifest.segments ──spill──> live pages          Manifest.removed ──spill──> removed pages
         └────────expire────────┴──────expire──────>─┘  └──────────drop_gone──────┘

A page is immutable: to change it, a commit writes a new page under a new uuid and moves the old key to `removed`. Live
pages hold offsets below the manifest's segments, in offset order; removed pages are in order of removal.

    Manifest.pages ──fold──> a page of pages (level 1) ──unfold──> Manifest.pages, a few at a time

Invariants: after `paginate` a manifest has at most 64 segments (live and removed), 64 pages (65 after `unfold`) and 32 KiB; a
page has at most 8,192 segments, a page of level 1 at most 1,024 pages. A new page is merged with the pages before it while they
are no larger than the merged page, like the carry of a binary counter: the entry of a remote segment is rewritten about
log2(8192/32) times in its life, and few pages hold fewer than 4,096 segments. Pages that can be merged no further are folded,
32 at a time, in commits that write little else. So a commit writes at most three pages beside the manifest, and nearly all
commits write none. Pages are read only through `Author.pages`: a transition that lacks a page raises `PageNeeded`.

Not promised: unlimited room. A manifest full of pages of level 1, which takes 500 million segments, refuses to grow.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from storage_tiers.cold.manifest.json import encode, encode_page
from storage_tiers.cold.manifest.model import (
    MAX_MANIFEST_BYTES,
    MAX_PAGES,
    MAX_SEGMENTS,
    Author,
    Ids,
    Manifest,
    ManifestPage,
    PageKind,
    PageNeeded,
    PageRef,
    RemoteSegment,
    Removed,
    Stamp,
    oldest_of,
)
from storage_tiers.cold.manifest.transitions import advance, next_stamp
from storage_tiers.errors import StorageError
from storage_tiers.records.checksum import crc32c

MAX_PAGE_SEGMENTS = 8192
#: Most pages that one page of level 1 names.
MAX_PAGE_REFS = 1024
#: The number of pages folded at a time, of pages unfolded at a time, and of the newest pages of a kind, which are never folded
#: because they may still be merged.
FOLDED, UNFOLDED, UNFOLDABLE = 32, 8, 8
#: With more than MERGE_ABOVE_PAGES pages, commits that write few pages merge and fold old ones, which keeps room for commits
#: that write many. A commit writes at most MAX_PAGE_WRITES pages.
MERGE_ABOVE_PAGES, MAX_PAGE_WRITES = 48, 3
#: Up to this many segments expired from a page go to the manifest's list instead of a page of their own.
_EXPIRED_INLINE = 32


@dataclass(frozen=True, slots=True)
class PageWrite:
    """A page to store: `data`, under `ref.key`, before the manifest that names it."""

    ref: PageRef
    page: ManifestPage
    data: bytes


@dataclass(frozen=True, slots=True)
class ManifestChange:
    """The next manifest, and the new pages that must be stored before it."""

    manifest: Manifest
    writes: tuple[PageWrite, ...] = ()


def paginate(change: ManifestChange, by: Author) -> ManifestChange:
    """The same commit with its manifest within bounds. Raises PageNeeded, and StorageError if no room is left."""
    draft = _Draft(change, by)
    draft.spill()
    if draft.write_count:
        draft.merge_tail(PageKind.LIVE)
        draft.merge_tail(PageKind.REMOVED)
        draft.spill()
    while len(draft.pages) > MERGE_ABOVE_PAGES and draft.write_count < MAX_PAGE_WRITES - 1:
        if not draft.merge() and not draft.fold():
            break
        draft.spill()
    while len(draft.pages) > MAX_PAGES or draft.too_large():
        if not draft.merge() and not draft.fold():
            if len(draft.pages) <= MAX_PAGES + 1 and not draft.too_large():
                break  # a page was opened by `unfold` to take something out of it
            raise StorageError(
                f"the manifest of {change.manifest.ids} is full: {sum(page.count for page in draft.pages)} segments in "
                f"{len(draft.pages)} pages. Nothing more of it is offloaded until old ones expire: shorten its retention if "
                "those records may be deleted. For the next topic choose a larger segment.bytes"
            )
        draft.spill()
    return draft.change()


def expire(manifest: Manifest, log_start: int, by: Author) -> ManifestChange | None:
    """Raises log start to min(`log_start`, `end`) and moves segments wholly below it to `removed`; None if nothing changes.
    Repeat until None: one commit expires segments of one page, or unfolds a page of level 1. Raises PageNeeded."""
    log_start = max(manifest.log_start, min(log_start, manifest.end))
    stamp = next_stamp(manifest, by)
    kept: list[PageRef] = list(manifest.live_pages)
    if kept and kept[0].level and _has_below(kept[0], log_start):
        return unfold(manifest, kept[0].key, by, log_start=log_start)
    removed: list[Removed] = list(manifest.removed)
    writes: list[PageWrite] = []
    if kept and kept[0].base < log_start:
        segments = _page(kept[0], by).segments
        # Removed items of the manifest go into the same page; otherwise they would spill into another one.
        most = MAX_PAGE_SEGMENTS - min(len(removed), MAX_PAGE_SEGMENTS - 1)
        below = min(sum(segment.end <= log_start for segment in segments), most)
        if below:
            old = kept.pop(0)
            removed.extend(Removed(stamp, segment) for segment in segments[:below])
            if below > _EXPIRED_INLINE:
                writes.append(page_write(manifest.ids, ManifestPage(PageKind.REMOVED, removed=tuple(removed)), by))
                removed = []
            removed.append(Removed(stamp, key=old.key))
            if below < len(segments):
                writes.append(page_write(manifest.ids, ManifestPage(PageKind.LIVE, segments[below:]), by))
                kept.insert(0, writes[-1].ref)
    expired = [write.ref for write in writes if write.ref.kind is PageKind.REMOVED]
    below = 0 if kept else sum(segment.end <= log_start for segment in manifest.segments)
    removed.extend(Removed(stamp, segment) for segment in manifest.segments[:below])
    if not writes and len(removed) == len(manifest.removed) and log_start == manifest.log_start:
        return None
    new = advance(
        manifest,
        by,
        log_start=log_start,
        segments=manifest.segments[below:],
        removed=tuple(removed),
        pages=(*kept, *manifest.removed_pages, *expired),
    )
    return ManifestChange(new, tuple(writes))


def unfold(manifest: Manifest, key: str, by: Author, **changes: Any) -> ManifestChange | None:
    """Unfolds the page of level 1 under `key`: its first pages, up to UNFOLDED, move into the manifest, the others into a new
    page. None if the manifest no longer names it. Raises PageNeeded."""
    at = next((index for index, ref in enumerate(manifest.pages) if ref.key == key), None)
    if at is None:
        return None
    children = _page(manifest.pages[at], by).pages
    count = max(1, min(UNFOLDED, MAX_PAGES - len(manifest.pages)))
    first, rest = children[:count], children[count:]
    writes = [page_write(manifest.ids, ManifestPage(manifest.pages[at].kind, pages=rest), by)] if rest else []
    shown = (*first, *(write.ref for write in writes))
    gone = Removed(next_stamp(manifest, by), key=key)
    pages = (*manifest.pages[:at], *shown, *manifest.pages[at + 1 :])
    return ManifestChange(
        advance(manifest, by, pages=pages, removed=(*manifest.removed, gone), **changes), tuple(writes)
    )


def _has_below(ref: PageRef, log_start: int) -> bool:
    """Whether the first segment of a live page lies wholly below log start."""
    return ref.oldest is not None and ref.oldest.end <= log_start


def sweepable(manifest: Manifest, item: Removed) -> tuple[str, ...]:
    """The keys of a removed item that may be deleted: all but the newest sidecar, which outlives its segment."""
    newest = manifest.sidecar.key if manifest.sidecar is not None else None
    return tuple(key for key in item.keys if key != newest)


def drop_gone(manifest: Manifest, gone: AbstractSet[str], pages: Collection[str], by: Author) -> ManifestChange | None:
    """Forgets deleted objects: tombstoned keys in `gone`, and removed items with all sweepable keys in `gone`, in the manifest
    and in the removed pages whose keys are in `pages`. None if there are none. Raises PageNeeded."""
    stamp = next_stamp(manifest, by)
    kept, dropped = _part(manifest, manifest.removed, gone)
    tombstoned = tuple(item for item in manifest.tombstoned if item.key not in gone)
    refs: list[PageRef] = []
    writes: list[PageWrite] = []
    for ref in manifest.pages:
        if ref.key not in pages:
            refs.append(ref)
            continue
        rest, dropped_here = _part(manifest, _page(ref, by).removed, gone)
        if not dropped_here:
            refs.append(ref)
            continue
        dropped.extend(dropped_here)
        kept.append(Removed(stamp, key=ref.key))
        if rest:
            writes.append(page_write(manifest.ids, ManifestPage(PageKind.REMOVED, removed=tuple(rest)), by))
            refs.append(writes[-1].ref)
    if not dropped and len(tombstoned) == len(manifest.tombstoned):
        return None
    segments = [item.segment for item in dropped if item.segment is not None]
    sidecar = manifest.sidecar
    if sidecar is not None and any(segment.sidecar_key == sidecar.key for segment in segments):
        sidecar = replace(sidecar, alone=True)
    swept = max((item.at.commit for item in dropped if item.segment is not None), default=0)
    new = advance(
        manifest,
        by,
        removed=tuple(kept),
        tombstoned=tombstoned,
        pages=tuple(refs),
        sidecar=sidecar,
        swept=max(manifest.swept, swept),
    )
    return ManifestChange(new, tuple(writes))


def _part(manifest: Manifest, items: Sequence[Removed], gone: AbstractSet[str]) -> tuple[list[Removed], list[Removed]]:
    """Splits removed items by whether all their sweepable keys are in `gone`: (kept, dropped)."""
    kept: list[Removed] = []
    dropped: list[Removed] = []
    for item in items:
        (dropped if all(key in gone for key in sweepable(manifest, item)) else kept).append(item)
    return kept, dropped


def _page(ref: PageRef, by: Author) -> ManifestPage:
    page = by.pages.get(ref.key)
    if page is None:
        raise PageNeeded(ref)
    return page


def page_write(ids: Ids, page: ManifestPage, by: Author) -> PageWrite:
    """The page's bytes under a new key, with the manifest's reference to it."""
    data = encode_page(ids, page)
    sums = _sums_of_pages(page.pages) if page.pages else _sums_of_segments(page)
    key = ids.page_key(sums["base"], max(sums["base"], sums["end"] - 1), by.new_uuid())
    ref = PageRef(kind=page.kind, key=key, count=page.count, length=len(data), crc32c=crc32c(data), **sums)
    return PageWrite(ref, page, data)


def _sums_of_segments(page: ManifestPage) -> dict[str, Any]:
    items: Sequence[RemoteSegment] = page.segments or [
        item.segment for item in page.removed if item.segment is not None
    ]
    if page.kind is PageKind.LIVE:
        last_commit = max(segment.added.commit for segment in page.segments)
    else:
        last_commit = max(item.at.commit for item in page.removed)
    return {
        "base": min((segment.base for segment in items), default=0),
        "end": max((segment.end for segment in items), default=0),
        "min_timestamp": min((segment.min_timestamp for segment in items), default=-1),
        "max_timestamp": max((segment.max_timestamp for segment in items), default=-1),
        "records": sum(segment.records for segment in items),
        "bytes": sum(segment.bytes for segment in items),
        "last_commit": last_commit,
        "first_removed_ms": min((item.at.time_ms for item in page.removed), default=0),
        "gap_from": page.segments[0].gap_from if page.segments else None,
        "oldest": oldest_of(page.segments[0]) if page.segments else None,
        "newest_ms": max((segment.newest_ms for segment in page.segments), default=0),
    }


def _sums_of_pages(refs: Sequence[PageRef]) -> dict[str, Any]:
    return {
        "level": 1,
        "base": min(ref.base for ref in refs),
        "end": max(ref.end for ref in refs),
        "min_timestamp": min(ref.min_timestamp for ref in refs),
        "max_timestamp": max(ref.max_timestamp for ref in refs),
        "records": sum(ref.records for ref in refs),
        "bytes": sum(ref.bytes for ref in refs),
        "last_commit": max(ref.last_commit for ref in refs),
        "first_removed_ms": min(ref.first_removed_ms for ref in refs),
        "gap_from": refs[0].gap_from,
        "oldest": refs[0].oldest,
        "newest_ms": max(ref.newest_ms for ref in refs),
    }


class _Draft:
    """A manifest while `paginate` makes it small. Its commit number is final; only the lists change."""

    __slots__ = ("_by", "_manifest", "_measured", "_size", "_stamp", "_writes", "pages", "removed", "segments")

    def __init__(self, change: ManifestChange, by: Author) -> None:
        self._manifest = change.manifest
        self._by = by
        self._stamp = Stamp(change.manifest.commit, by.now_ms)
        self._writes = {write.ref.key: write for write in change.writes}
        self.segments = change.manifest.segments
        self.removed = change.manifest.removed
        self.pages = list(change.manifest.pages)
        self._measured: Manifest | None = None
        self._size = 0

    def change(self) -> ManifestChange:
        return ManifestChange(self._current(), tuple(self._writes.values()))

    @property
    def write_count(self) -> int:
        return len(self._writes)

    def too_large(self) -> bool:
        manifest = self._current()
        if manifest is not self._measured:
            self._measured, self._size = manifest, len(encode(manifest))
        return self._size > MAX_MANIFEST_BYTES

    def spill(self) -> None:
        """Moves items into new pages until the rest fits: the removed items if they are at least as many as the live segments,
        otherwise the older half of the live segments."""
        while len(self.segments) + len(self.removed) > MAX_SEGMENTS or (self.too_large() and self._movable()):
            if len(self.removed) >= len(self.segments):
                page = ManifestPage(PageKind.REMOVED, removed=self.removed[:MAX_PAGE_SEGMENTS])
                self.removed = self.removed[MAX_PAGE_SEGMENTS:]
                self.pages.append(self._new(page))
            else:
                half = min((len(self.segments) + 1) // 2, MAX_PAGE_SEGMENTS)
                page = ManifestPage(PageKind.LIVE, self.segments[:half])
                self.segments = self.segments[half:]
                live = sum(ref.kind is PageKind.LIVE for ref in self.pages)
                self.pages.insert(live, self._new(page))

    def merge_tail(self, kind: PageKind) -> None:
        """Merges the newest page of a kind, if this commit writes it, with the pages before it that are no larger, while they
        fit one page."""
        end = max((index + 1 for index, ref in enumerate(self.pages) if ref.kind is kind), default=0)
        if end == 0 or self.pages[end - 1].key not in self._writes:
            return
        start, count = end - 1, self.pages[end - 1].count
        while start > 0 and self.pages[start - 1].kind is kind and not self.pages[start - 1].level:
            before = self.pages[start - 1].count
            if before > count or before + count > MAX_PAGE_SEGMENTS:
                break
            start, count = start - 1, count + before
        if start < end - 1:
            self._merge(start, end)

    def merge(self) -> bool:
        """Merges the two neighbours of one kind with the smallest sum; False if none may be merged."""
        pairs = [
            (left.count + right.count, index)
            for index, (left, right) in enumerate(zip(self.pages, self.pages[1:], strict=False))
            if left.kind is right.kind
            and not left.level
            and not right.level
            and left.count + right.count <= MAX_PAGE_SEGMENTS
        ]
        if not pairs:
            return False
        _, index = min(pairs)
        self._merge(index, index + 2)
        return True

    def fold(self) -> bool:
        """Moves up to FOLDED neighbours into a page of level 1: the one right before them if it has room, else a new one.
        Returns False if none may be moved. Takes the longest run, so that the pages that `unfold` has just moved stay."""
        start, end = self._longest_run()
        end = min(end, start + FOLDED)
        if end - start < 2:
            return False
        refs = tuple(self.pages[start:end])
        before = self.pages[start - 1] if start else None
        if before is not None and before.level and before.kind is refs[0].kind:
            known = self._read(before).pages
            if len(known) + len(refs) <= MAX_PAGE_REFS:
                refs, start = (*known, *refs), start - 1
                self._forget(before)
        self.pages[start:end] = [self._new(ManifestPage(refs[0].kind, pages=refs))]
        return True

    def _longest_run(self) -> tuple[int, int]:
        """(start, end) of the longest run of foldable neighbours: pages of one kind and of level 0. The newest pages of a kind
        may still be merged and do not count. A run before a page of level 1 does not count either, because `unfold` has moved
        its pages there."""
        newest = {
            kind: [index for index, ref in enumerate(self.pages) if ref.kind is kind][-UNFOLDABLE:] for kind in PageKind
        }
        best = (0, 0)
        indexes = [index for index, ref in enumerate(self.pages) if not ref.level and index not in newest[ref.kind]]
        for _, group in itertools.groupby(
            enumerate(indexes), lambda each: (each[1] - each[0], self.pages[each[1]].kind)
        ):
            found = [index for _, index in group]
            start, end = found[0], found[-1] + 1
            opened = end < len(self.pages) and self.pages[end].level and self.pages[end].kind is self.pages[start].kind
            if not opened:
                best = max(best, (start, end), key=lambda each: each[1] - each[0])
        return best

    def _forget(self, ref: PageRef) -> None:
        """Drops a page that has been replaced."""
        if self._writes.pop(ref.key, None) is None:
            self.removed = (*self.removed, Removed(self._stamp, key=ref.key))

    def _merge(self, start: int, end: int) -> None:
        merged = [self._read(ref) for ref in self.pages[start:end]]
        page = ManifestPage(
            merged[0].kind,
            tuple(itertools.chain.from_iterable(part.segments for part in merged)),
            tuple(itertools.chain.from_iterable(part.removed for part in merged)),
        )
        for ref in self.pages[start:end]:
            self._forget(ref)
        self.pages[start:end] = [self._new(page)]

    def _movable(self) -> bool:
        # Two or fewer stay, because a reference to a page takes as many bytes in the manifest.
        return len(self.segments) + len(self.removed) > 2

    def _read(self, ref: PageRef) -> ManifestPage:
        write = self._writes.get(ref.key)
        return write.page if write is not None else _page(ref, self._by)

    def _new(self, page: ManifestPage) -> PageRef:
        write = page_write(self._manifest.ids, page, self._by)
        self._writes[write.ref.key] = write
        return write.ref

    def _current(self) -> Manifest:
        pages = tuple(self.pages)
        if (self.segments, self.removed, pages) != (
            self._manifest.segments,
            self._manifest.removed,
            self._manifest.pages,
        ):
            self._manifest = replace(self._manifest, segments=self.segments, removed=self.removed, pages=pages)
        return self._manifest
