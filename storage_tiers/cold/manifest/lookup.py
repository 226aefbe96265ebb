"""Questions to a manifest: which entry holds an offset or a time, what was live at a commit, what happened since.

Pure: pages come from `load_page`, which may raise `PageNeeded` to have the question asked again (`CommitLoop.look`) or read
the store itself (blocking tools). A page is asked for only if its range or its times can matter.

Invariants: what lies wholly below log start is never returned; an entry that log start cuts is, and the reader masks.
Not promised: that an entry's objects still exist when they are read; a 404 means that the manifest is old, load it again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from storage_tiers.cold.manifest.model import (
    Entry,
    Manifest,
    Page,
    PageRef,
    Removed,
)
from storage_tiers.errors import InvalidRequest, OffsetOutOfRange

LoadPage = Callable[[PageRef], Page]


class ManifestEvent(NamedTuple):
    """What a commit did to an entry."""

    commit: int
    kind: Literal["added", "removed"]
    entry: Entry


def leaves(
    refs: Iterable[PageRef], load_page: LoadPage, wanted: Callable[[PageRef], bool] = lambda ref: True
) -> Iterator[PageRef]:
    """The pages of entries among and below `refs` that are `wanted`, in order. One of level 1 is asked for only if it is
    wanted itself: its bounds are those of all its pages."""
    for ref in refs:
        if wanted(ref):
            if ref.level:
                yield from leaves(load_page(ref).pages, load_page, wanted)
            else:
                yield ref


def live_entries(manifest: Manifest, load_page: LoadPage, start: int = 0) -> Iterator[Entry]:
    """Live entries with an offset at or above both `start` and log start, in offset order."""
    start = max(start, manifest.log_start)
    for ref in leaves(manifest.live_pages, load_page, lambda ref: ref.end > start):
        entries = load_page(ref).entries
        yield from entries[_first_after(entries, start) :]
    yield from manifest.entries[_first_after(manifest.entries, start) :]


def entries_for(manifest: Manifest, load_page: LoadPage, offset: int) -> Iterator[Entry]:
    """Live entries from the one that holds `offset` on; none if it is at or past the end. OffsetOutOfRange below log start."""
    if offset < manifest.log_start:
        raise OffsetOutOfRange(
            f"{manifest.ids}: offset {offset} is below log start {manifest.log_start}; read from there"
        )
    return live_entries(manifest, load_page, offset)


def entry_for(manifest: Manifest, load_page: LoadPage, offset: int) -> Entry | None:
    """The live entry that holds `offset`, or None at or past the end. OffsetOutOfRange below log start."""
    return next(entries_for(manifest, load_page, offset), None)


def entries_for_timestamp(manifest: Manifest, load_page: LoadPage, timestamp: int) -> Iterator[Entry]:
    """Live entries that hold a record at or after `timestamp` (ms), in offset order.

    The first one answers, unless log start cuts it and hides that record: then the next one does.
    """
    for ref in leaves(
        manifest.live_pages, load_page, lambda ref: ref.end > manifest.log_start and ref.max_timestamp >= timestamp
    ):
        for entry in load_page(ref).entries:
            if entry.end > manifest.log_start and entry.max_timestamp >= timestamp:
                yield entry
    for entry in manifest.entries:
        if entry.end > manifest.log_start and entry.max_timestamp >= timestamp:
            yield entry


def state_at(manifest: Manifest, load_page: LoadPage, commit: int) -> list[Entry]:
    """The entries that were live right after `commit`, in offset order. InvalidRequest if that is in the future, or if
    something removed since has been swept and no pin of that commit held it."""
    if commit > manifest.commit:
        raise InvalidRequest(f"{manifest.ids} has reached commit {manifest.commit}, not {commit}")
    if commit < manifest.swept and all(pin.commit != commit for pin in manifest.pins):
        raise InvalidRequest(
            f"{manifest.ids}: ranges removed up to commit {manifest.swept} have been swept, and commit {commit} is not pinned"
        )
    live = [entry for entry in _all_live(manifest, load_page) if entry.added.commit <= commit]
    gone = (item for item in _all_removed(manifest, load_page, commit) if item.at.commit > commit)
    live.extend(item.entry for item in gone if item.entry is not None and item.entry.added.commit <= commit)
    return sorted(live, key=lambda entry: entry.base)


def events_after(manifest: Manifest, load_page: LoadPage, cursor: int) -> list[ManifestEvent]:
    """What happened after commit `cursor`, in order of commit. InvalidRequest if some of it has been swept."""
    if cursor < manifest.swept:
        raise InvalidRequest(
            f"{manifest.ids}: ranges removed up to commit {manifest.swept} have been swept, events after commit {cursor} are "
            "no longer whole; start from the live state"
        )
    events = [
        ManifestEvent(entry.added.commit, "added", entry)
        for entries in _entry_lists(manifest, load_page, lambda ref: ref.last_commit > cursor)
        for entry in entries
        if entry.added.commit > cursor
    ]
    for item in _all_removed(manifest, load_page, cursor):
        if item.entry is not None and item.at.commit > cursor:
            events.append(ManifestEvent(item.at.commit, "removed", item.entry))
            if item.entry.added.commit > cursor:
                events.append(ManifestEvent(item.entry.added.commit, "added", item.entry))
    return sorted(events, key=lambda event: (event.commit, event.kind, event.entry.base))


def added_after(manifest: Manifest, load_page: LoadPage, cursor: int) -> list[Entry]:
    """Live entries that a commit after `cursor` added, in order of commit and offset. What was added and removed meanwhile
    is not among them; it is lost to whoever is behind `manifest.swept`."""
    added = (
        entry
        for entries in _entry_lists(
            manifest, load_page, lambda ref: ref.last_commit > cursor and ref.end > manifest.log_start
        )
        for entry in entries
        if entry.added.commit > cursor and entry.end > manifest.log_start
    )
    return sorted(added, key=lambda entry: (entry.added.commit, entry.base))


def live_bytes(manifest: Manifest) -> int:
    """Bytes of all live entries, without loading a page."""
    return sum(ref.bytes for ref in manifest.live_pages) + sum(entry.bytes for entry in manifest.entries)


def _first_after(entries: tuple[Entry, ...], start: int) -> int:
    return bisect.bisect_right(entries, start, key=lambda entry: entry.end)


def _entry_lists(
    manifest: Manifest, load_page: LoadPage, wanted: Callable[[PageRef], bool]
) -> Iterator[tuple[Entry, ...]]:
    for ref in leaves(manifest.live_pages, load_page, wanted):
        yield load_page(ref).entries
    yield manifest.entries


def _all_live(manifest: Manifest, load_page: LoadPage) -> Iterator[Entry]:
    for entries in _entry_lists(manifest, load_page, lambda ref: True):
        yield from entries


def _all_removed(manifest: Manifest, load_page: LoadPage, after: int) -> Iterator[Removed]:
    """Removed items, at least all those removed after commit `after`."""
    for ref in leaves(manifest.removed_pages, load_page, lambda ref: ref.last_commit > after):
        yield from load_page(ref).removed
    yield from manifest.removed
