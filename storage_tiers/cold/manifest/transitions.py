"""Changes that one commit may make to a partition's manifest; `pages`, `replacement` and `repair` have the others. Pure.

A transition maps a manifest to the next one, which takes effect only by a compare-and-swap on the manifest's key (I4). Every
transition is one commit: `commit` rises by one. `recent` keeps the last 32 commit ids, so that a writer whose answer was lost
finds its own.

Invariants, kept by every transition and checked again before a manifest is written (`broken`, `broken_step`):
- live segments tile: each begins at the previous one's end, unless it records that end in `gap_from` and all offsets between
  are below log start; the last one ends at `end`; every offset from log start to `end` is covered;
- no transition lowers `end`, the leader epoch, the incarnation or log start; `deleted` is final;
- a key in `removed` or `tombstoned` never becomes a live segment's again.

Not promised: that the objects exist (offloads are verified before the commit), or that the manifest is small; `pages` moves
segments out of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from storage_tiers.cold.manifest.model import (
    MAX_PINS,
    MAX_TOMBSTONED,
    PIN_NAME,
    RECENT_COMMITS,
    Author,
    CommitId,
    Ids,
    Manifest,
    ManifestWriter,
    NewestSidecar,
    PageRef,
    Pin,
    RemoteSegment,
    Removed,
    Stamp,
    State,
    TombstonedKey,
)
from storage_tiers.errors import DeletedInStore, FencedWriter, InvalidRequest


def first_manifest(ids: Ids) -> Manifest:
    """The manifest of a partition that has none in the store. It is never stored: commit 1 creates the object."""
    return Manifest(ids)


def check_writer(manifest: Manifest, writer: ManifestWriter) -> None:
    """Raises DeletedInStore if the partition is deleted, and FencedWriter if it has a commit of a newer incarnation."""
    if manifest.state is State.DELETED:
        raise DeletedInStore(
            f"{manifest.ids} with topic id {manifest.ids.topic_id} is deleted in the bucket, which is final: "
            "nothing more is offloaded, evicted or swept. To keep the topic, put back the version of "
            f"{manifest.ids.manifest_key} from before the deletion, with every object that was there then. "
            "Otherwise delete the topic"
        )
    check_not_fenced(manifest, writer)


def check_not_fenced(manifest: Manifest, writer: ManifestWriter) -> None:
    """Raises FencedWriter if the partition has a commit of a newer incarnation."""
    if writer.incarnation is not None and writer.incarnation < manifest.incarnation:
        raise FencedWriter(
            f"the manifest of {manifest.ids} was committed by incarnation {manifest.incarnation}, this node is "
            f"{writer.incarnation}: a copy of its directory has run, or the cluster was taken over. Stop this node; the one "
            "that started last owns the cluster"
        )


def advance(manifest: Manifest, by: Author, **changes: Any) -> Manifest:
    """The next commit with these fields changed. Raises the errors of `check_writer`."""
    check_writer(manifest, by.writer)
    commit = manifest.commit + 1
    stamped: dict[str, Any] = {
        "line": manifest.line or by.commit_id,
        "commit": commit,
        "recent": (*manifest.recent, CommitId(commit, by.commit_id))[-RECENT_COMMITS:],
        "committed_at": by.now_ms,
        "writer": by.writer,
        "incarnation": manifest.incarnation if by.writer.incarnation is None else by.writer.incarnation,
    }
    return replace(manifest, **stamped, **changes)


def next_stamp(manifest: Manifest, by: Author) -> Stamp:
    return Stamp(manifest.commit + 1, by.now_ms)


def check_epoch(manifest: Manifest, leader_epoch: int) -> None:
    if leader_epoch < manifest.leader_epoch:
        raise FencedWriter(
            f"the manifest of {manifest.ids} belongs to leader epoch {manifest.leader_epoch}, not {leader_epoch}; "
            "another replica leads it now"
        )


def may_begin(manifest: Manifest, base: int, log_start: int) -> bool:
    """Whether an extension may begin at `base`: at `end`, or past it if all offsets between are below log start."""
    return base == manifest.end or manifest.end < base <= max(manifest.log_start, log_start)


def extend(
    manifest: Manifest, segment: RemoteSegment, by: Author, *, leader_epoch: int, last_record_epoch: int, log_start: int
) -> Manifest:
    """Appends a verified segment. Raises FencedWriter under an older epoch. Raises InvalidRequest if the segment is empty, if
    `may_begin` forbids its base, or if one of its keys is already in the manifest, live, removed or tombstoned.

    Only the manifest's own lists are searched for the keys; segments in pages end at or below `end`.
    """
    check_epoch(manifest, leader_epoch)
    log_start = max(manifest.log_start, log_start)
    if not may_begin(manifest, segment.base, log_start):
        raise InvalidRequest(
            f"an extension of {manifest.ids} must begin at offset {manifest.end}, not at {segment.base}"
        )
    if not segment.base < segment.end:
        raise InvalidRequest(f"an extension of {manifest.ids} must hold offsets, not [{segment.base}, {segment.end})")
    if {segment.key, segment.sidecar_key} & set(manifest.keys()):
        raise InvalidRequest(f"{segment.key} is already in the manifest of {manifest.ids}; upload under a new uuid")
    stamp = next_stamp(manifest, by)
    removed = manifest.removed
    if manifest.sidecar is not None and manifest.sidecar.alone:
        removed = (*removed, Removed(stamp, key=manifest.sidecar.key))
    segment = replace(segment, added=stamp, gap_from=None if segment.base == manifest.end else manifest.end)
    return advance(
        manifest,
        by,
        leader_epoch=leader_epoch,
        last_record_epoch=last_record_epoch,
        log_start=min(log_start, segment.end),
        end=segment.end,
        sidecar=NewestSidecar(segment.sidecar_key, segment.sections),
        segments=(*manifest.segments, segment),
        removed=removed,
    )


def claim_epoch(manifest: Manifest, leader_epoch: int, by: Author) -> Manifest:
    """Raises the leader epoch, and records the incarnation as every commit does. Raises FencedWriter under an older epoch."""
    check_epoch(manifest, leader_epoch)
    return advance(manifest, by, leader_epoch=leader_epoch)


def pin(manifest: Manifest, name: str, by: Author) -> Manifest:
    """Keeps the state as of this commit until `unpin`. Raises InvalidRequest for a taken or invalid name, or beyond MAX_PINS
    pins."""
    if PIN_NAME.match(name) is None:
        raise InvalidRequest(f"{name!r} cannot name a pin: 1 to 64 letters, digits, '.', '_', ':' and '-'")
    if any(known.name == name for known in manifest.pins):
        raise InvalidRequest(
            f"{manifest.ids} has a pin named {name!r} already; remove it first, or choose another name"
        )
    if len(manifest.pins) == MAX_PINS:
        raise InvalidRequest(f"{manifest.ids} has {MAX_PINS} pins, the maximum; remove one")
    return advance(
        manifest, by, pins=(*manifest.pins, Pin(name, manifest.commit + 1, manifest.log_start, manifest.end))
    )


def unpin(manifest: Manifest, name: str, by: Author) -> Manifest:
    if all(known.name != name for known in manifest.pins):
        raise InvalidRequest(f"{manifest.ids} has no pin named {name!r}")
    return advance(manifest, by, pins=tuple(known for known in manifest.pins if known.name != name))


def tombstone(manifest: Manifest, orphans: Collection[str], by: Author) -> Manifest:
    """Tombstones orphans. The caller has searched the pages for their keys; the manifest's own lists are searched here."""
    if len(manifest.tombstoned) + len(orphans) > MAX_TOMBSTONED:
        raise InvalidRequest(
            f"at most {MAX_TOMBSTONED} keys of {manifest.ids} may be tombstoned; drop those that are gone"
        )
    named = set(orphans) & set(manifest.keys())
    if named:
        raise InvalidRequest(f"{min(named)} is referenced by the manifest of {manifest.ids}; it is not an orphan")
    stamp = next_stamp(manifest, by)
    return advance(manifest, by, tombstoned=(*manifest.tombstoned, *(TombstonedKey(key, stamp) for key in orphans)))


def touch(manifest: Manifest, by: Author) -> Manifest:
    """A commit that changes nothing. The modification time of the object written shows the store's clock."""
    return advance(manifest, by)


def delete(manifest: Manifest, by: Author) -> Manifest:
    """The terminal commit. It names no object: all may be deleted after the grace, even pinned ones."""
    return advance(
        manifest, by, state=State.DELETED, sidecar=None, segments=(), removed=(), tombstoned=(), pins=(), pages=()
    )


def broken(manifest: Manifest) -> str | None:
    """The first fault inside one manifest, as a sentence; None if it is sound."""
    if not 0 <= manifest.log_start <= manifest.end:
        return f"log start {manifest.log_start} lies outside [0, {manifest.end}]"
    if [known.commit for known in manifest.recent] != list(
        range(manifest.commit - len(manifest.recent) + 1, manifest.commit + 1)
    ):
        return f"the recent commits do not lead up to commit {manifest.commit}"
    if len(manifest.recent) != min(manifest.commit, RECENT_COMMITS):
        return f"{len(manifest.recent)} recent commits are recorded at commit {manifest.commit}"
    if bool(manifest.line) != bool(manifest.commit):
        return f"its line is {manifest.line!r} at commit {manifest.commit}"
    if manifest.state is State.DELETED:
        return "a deleted partition names objects" if any(manifest.keys()) else None
    return _broken_tiling(manifest) or _broken_keys(manifest)


def _broken_tiling(manifest: Manifest) -> str | None:
    spans: list[PageRef | RemoteSegment] = [*manifest.live_pages, *manifest.segments]
    for before, span in zip([None, *spans], spans, strict=False):
        if not 0 <= span.base < span.end:
            return f"a live segment [{span.base}, {span.end}) is empty or negative"
        if before is None:
            if span.base > manifest.log_start:
                return f"offsets [{manifest.log_start}, {span.base}) from log start on are in no live segment"
            continue
        if span.base < before.end:
            return f"the live segments [{before.base}, {before.end}) and [{span.base}, {span.end}) overlap"
        if span.base != before.end and (span.gap_from != before.end or span.base > manifest.log_start):
            return f"offsets [{before.end}, {span.base}) are in no live segment"
    if spans and spans[-1].end != manifest.end:
        return f"the last live segment ends at {spans[-1].end}, not at {manifest.end}"
    if not spans and manifest.log_start != manifest.end:
        return f"offsets [{manifest.log_start}, {manifest.end}) are in no live segment"
    return None


def _broken_keys(manifest: Manifest) -> str | None:
    live = {key for segment in manifest.segments for key in (segment.key, segment.sidecar_key)} | {
        page.key for page in manifest.pages
    }
    gone = {key for item in manifest.removed for key in item.keys} | {
        tombstoned.key for tombstoned in manifest.tombstoned
    }
    if live & gone:
        return f"{min(live & gone)} is live and removed at once"
    names = [known.name for known in manifest.pins]
    if len(set(names)) != len(names):
        return "two pins have one name"
    return None


def broken_step(old: Manifest, new: Manifest) -> str | None:
    """The first invariant between two commits that `new` would break, as a sentence; None if it breaks none."""
    if new.commit != old.commit + 1 or new.ids != old.ids:
        return f"commit {new.commit} of {new.ids} does not follow commit {old.commit} of {old.ids}"
    if old.state is State.DELETED:
        return "nothing follows a deletion"
    if old.line not in ("", new.line):
        return f"the line would change from {old.line} to {new.line}"
    for name in ("leader_epoch", "incarnation", "log_start", "end", "swept"):
        if getattr(new, name) < getattr(old, name):
            return f"{name} would fall from {getattr(old, name)} to {getattr(new, name)}"
    gone = {key for item in old.removed for key in item.keys} | {tombstoned.key for tombstoned in old.tombstoned}
    for segment in new.segments:
        if segment.key in gone or segment.sidecar_key in gone:
            return f"{segment.key} was removed or tombstoned and would be referenced again"
    return None
