"""Whether the manifest in the store contains the newest one seen before (I10).

A store can go backwards: a bucket is restored, a prefix is copied in the wrong order, a key is deleted by hand. Every object is
then intact, but deleting, evicting or committing by such a manifest would destroy data that the manifest does not name. So
every reader of a manifest keeps a digest of it (`SeenManifest`), and checks whether each manifest that the store shows
*contains* that one:

    another line                                    no: only a repair begins a line
    the commit seen is in `recent`                  yes, whatever was committed since
    its number is in `recent`, with another id      no: a second history
    its number is higher, or there is no manifest   no: the manifest is older, or gone
    its number is lower than all in `recent`        yes, if no field of _RISING fell, and each segment live then is live
                                                    now or was removed later (`lost`, which needs the whole manifest seen)

Pure; faults are sentences, as in `transitions.broken`. Not promised: detection of a restored bucket to which another writer
then committed more than 32 times, if every segment seen is still live or was removed since. Nothing is lost in that case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from storage_tiers.cold.manifest.lookup import leaves
from storage_tiers.cold.manifest.model import Manifest, ManifestPage, PageRef, State

LoadPage = Callable[[PageRef], ManifestPage]

#: Maximum commits of one operation on the store: half of the commit ids that a manifest keeps. The commit last seen therefore
#: stays in `recent` even after one unsaved operation and a concurrent one.
MAX_COMMITS = 16
#: The most sidecars of unreferenced segments that are read, to tell an offload under way from lost history.
MAX_LOOKED_INTO = 1000
#: The values that never fall from one commit to the next.
_RISING = ("incarnation", "leader_epoch", "log_start", "end", "swept")


@dataclass(frozen=True, slots=True)
class SeenManifest:
    """The digest of a manifest. `saved_at` is the path of a file that holds that manifest as `json.encode` writes it."""

    line: str
    commit: int
    commit_id: str
    incarnation: int
    leader_epoch: int
    log_start: int
    end: int
    swept: int
    saved_at: str = ""


def seen_of(manifest: Manifest, saved_at: str = "") -> SeenManifest | None:
    """The digest of a manifest; None for one that was never stored."""
    if not manifest.recent:
        return None
    return SeenManifest(
        manifest.line,
        manifest.commit,
        manifest.recent[-1].id,
        manifest.incarnation,
        manifest.leader_epoch,
        manifest.log_start,
        manifest.end,
        manifest.swept,
        saved_at,
    )


class Span(NamedTuple):
    """An object of offsets [base, end) that no manifest names."""

    base: int
    end: int
    key: str


def follow_one_another(beyond: Sequence[Span]) -> tuple[str, str] | None:
    """The keys of two of these unreferenced segments at or after a manifest's end, if one begins where the other ends.

    A writer offloads one segment at a time, where the manifest ends: every interrupted offload begins there. The first of two
    consecutive segments was therefore committed, and the manifest is older than that commit.
    """
    begin = {span.base: span.key for span in beyond}
    return next(((span.key, begin[span.end]) for span in beyond if span.end in begin), None)


def fault(manifest: Manifest | None, seen: SeenManifest) -> str | None:
    """Says why the manifest shown does not contain the one seen; None if the digest shows no reason."""
    known = f"commit {seen.commit}, up to offset {seen.end}, has been seen"
    if manifest is None or not manifest.recent:
        return f"the object store holds no manifest, and {known}"
    shown = f"the object store shows commit {manifest.commit}, up to offset {manifest.end}"
    if manifest.line != seen.line:
        return f"{shown}, of another line ({manifest.line}), and {known} (of line {seen.line})"
    if manifest.commit < seen.commit:
        return f"{shown}, and {known}"
    if not beyond_recent(manifest, seen):
        if manifest.has_commit(seen.commit_id):
            return None
        return f"{shown}, which does not follow from what was seen: its commit {seen.commit} has another id"
    for name in _RISING:
        before, now = getattr(seen, name), getattr(manifest, name)
        if now < before:
            return f"{shown}, in which {name} is {now}, and at commit {seen.commit} it was {before}"
    return None


def beyond_recent(manifest: Manifest, seen: SeenManifest) -> bool:
    """Whether the commit seen is older than those whose ids the manifest keeps: then `lost` must decide."""
    return seen.commit < manifest.recent[0].commit


def lost(manifest: Manifest, saved: Manifest, load_page: LoadPage) -> str | None:
    """A sentence about a segment that was live in `saved` and is neither live nor removed since; None if there is none. Loads
    the pages that the two do not share. For a page of `saved` that is gone, `load_page` may return an empty one."""
    if manifest.state is State.DELETED:
        return None  # a deletion removes everything
    shared = {ref.key for ref in saved.live_pages} & {ref.key for ref in manifest.live_pages}
    wanted = {segment.key: segment for segment in saved.segments}
    for ref in leaves(saved.live_pages, load_page, lambda ref: ref.key not in shared):
        if ref.key not in shared:
            wanted.update((segment.key, segment) for segment in load_page(ref).segments)
    for segment in manifest.segments:
        wanted.pop(segment.key, None)
    shown = leaves(
        manifest.live_pages,
        load_page,
        lambda ref: ref.key not in shared and any(ref.base <= segment.base < ref.end for segment in wanted.values()),
    )
    for ref in shown:
        for segment in load_page(ref).segments:
            wanted.pop(segment.key, None)
    later = leaves(manifest.removed_pages, load_page, lambda ref: bool(wanted) and ref.last_commit > saved.commit)
    for item in itertools.chain(manifest.removed, *(load_page(ref).removed for ref in later)):
        if item.segment is not None and item.at.commit > saved.commit:
            wanted.pop(item.segment.key, None)
    if not wanted or manifest.swept > saved.commit:  # later removals may have been forgotten since
        return None
    segment = min(wanted.values(), key=lambda each: each.base)
    return (
        f"the object store shows commit {manifest.commit}, in which the segment [{segment.base}, {segment.end}) of commit "
        f"{saved.commit} is neither live nor removed"
    )
