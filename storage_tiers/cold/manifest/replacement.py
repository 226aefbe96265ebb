"""The transition that compaction of the bucket commits: one rewritten segment replaces neighbouring live ones.

The segments that it replaces move to `removed`: readers of an earlier commit find their objects until the sweep's grace has
passed, and pins keep them longer. Nothing else of the manifest changes, so any authorised writer may commit the replacement
under any leader epoch (I4).

Invariants: the new segment has exactly the offsets of those it replaces; the newest segment is never replaced, because its
sidecar is the state that the next leader begins with.

Pure. Not promised: that segments in pages of level 1 can be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from storage_tiers.cold.manifest.model import (
    Author,
    Manifest,
    ManifestPage,
    PageKind,
    PageNeeded,
    PageRef,
    RemoteSegment,
    Removed,
)
from storage_tiers.cold.manifest.pages import MAX_PAGE_SEGMENTS, ManifestChange, PageWrite, page_write
from storage_tiers.cold.manifest.transitions import advance, next_stamp
from storage_tiers.errors import InvalidRequest


def replace_segments(
    manifest: Manifest, old: Sequence[RemoteSegment], new: RemoteSegment, by: Author
) -> ManifestChange:
    """Replaces the neighbours `old` by `new`. Raises PageNeeded. Raises InvalidRequest if `old` are not all live and side by
    side in the manifest or its pages of level 0, if `new` has other offsets than `old` or a key that the manifest knows, or if
    the newest segment is among `old`."""
    if not old or (new.base, new.end) != (old[0].base, old[-1].end):
        raise InvalidRequest(f"{new.key} has other offsets than the segments that it replaces in {manifest.ids}")
    if manifest.sidecar is not None and old[-1].sidecar_key == manifest.sidecar.key:
        raise InvalidRequest(
            f"{old[-1].key} is the newest segment of {manifest.ids}: it stays until a newer one follows"
        )
    if {new.key, new.sidecar_key} & set(manifest.keys()):
        raise InvalidRequest(f"{new.key} is already in the manifest of {manifest.ids}; upload under a new uuid")
    opened = [ref for ref in manifest.live_pages if ref.base < new.end and new.base < ref.end]
    if any(ref.level for ref in opened):
        raise InvalidRequest(f"{old[0].key} of {manifest.ids} lies in a page of level 1, which is not rewritten")
    paged = [segment for ref in opened for segment in _segments(ref, by)]
    chain = (*paged, *manifest.segments)
    at = next((index for index, segment in enumerate(chain) if segment.key == old[0].key), len(chain))
    if [segment.key for segment in chain[at : at + len(old)]] != [segment.key for segment in old]:
        raise InvalidRequest(
            f"the segments [{new.base}, {new.end}) of {manifest.ids} are no longer the live ones; they are compacted again"
        )
    stamp = next_stamp(manifest, by)
    made = replace(new, added=stamp, gap_from=old[0].gap_from)
    after = at + len(old)
    if at < len(paged):
        # If the run begins in a page, the new segment goes into a page, unless the run ends among the manifest's own segments.
        in_pages = [*paged[:at], made, *paged[after:]] if after <= len(paged) else list(paged[:at])
        inline = manifest.segments if after <= len(paged) else (made, *chain[after:])
    else:
        opened, in_pages = [], []
        inline = (*chain[len(paged) : at], made, *chain[after:])
    writes: list[PageWrite] = [
        page_write(manifest.ids, ManifestPage(PageKind.LIVE, tuple(in_pages[start : start + MAX_PAGE_SEGMENTS])), by)
        for start in range(0, len(in_pages), MAX_PAGE_SEGMENTS)
    ]
    gone = {ref.key for ref in opened}
    live = manifest.live_pages
    first = live.index(opened[0]) if opened else len(live)
    pages = (
        *live[:first],
        *(write.ref for write in writes),
        *(ref for ref in live[first:] if ref.key not in gone),
        *manifest.removed_pages,
    )
    removed = (
        *manifest.removed,
        *(Removed(stamp, segment) for segment in old),
        *(Removed(stamp, key=ref.key) for ref in opened),
    )
    changed = advance(manifest, by, segments=tuple(inline), removed=removed, pages=pages)
    return ManifestChange(changed, tuple(writes))


def _segments(ref: PageRef, by: Author) -> tuple[RemoteSegment, ...]:
    page = by.pages.get(ref.key)
    if page is None:
        raise PageNeeded(ref)
    return page.segments
