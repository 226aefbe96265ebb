"""Every way in which a manifest's root may change.

A transition takes the old root and returns the new one, which only a compare-and-swap on the manifest's key makes true
(I4). Every transition is one commit: `commit` rises by one, the last 32 commit ids stand in `recent` so that a writer
whose answer was lost finds its own. Pure.

Invariants, kept by every transition and checked again before a root is written (`broken`, `broken_step`):
- live entries tile: each begins where the one before it ends, or records in `gap_from` where that was, and then the
  offsets between are below log start; the last one ends at `end`; nothing at or above log start is left uncovered;
- nobody lowers `end`, the leader epoch, the incarnation or log start; `deleted` is the last state;
- a key that stands in `removed` or `condemned` never becomes a live entry's again.

Not promised: that the objects exist (the uploader verifies them before it commits), nor that the root is small; `pages`
moves entries out of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from storage_tiers.cold.manifest.model import (
    MAX_CONDEMNED,
    MAX_PINS,
    PIN_NAME,
    RECENT_COMMITS,
    Author,
    CommitId,
    Condemned,
    Entry,
    Ids,
    ManifestWriter,
    NewestSidecar,
    PageRef,
    Pin,
    Removed,
    Root,
    Stamp,
    State,
)
from storage_tiers.errors import DeletedInStore, FencedWriter, InvalidRequest


def first_root(ids: Ids) -> Root:
    """The root of a partition that has no manifest yet. It is never stored: its first commit (1) creates the object."""
    return Root(ids)


def check_writer(root: Root, writer: ManifestWriter) -> None:
    """DeletedInStore if the partition is deleted, FencedWriter if it has a commit of a newer incarnation."""
    if root.state is State.DELETED:
        raise DeletedInStore(
            f"{root.ids} with topic id {root.ids.topic_id} is deleted in the bucket, and nothing follows that there: nothing "
            f"more is uploaded, evicted or swept. If the topic is to live, put the version of {root.ids.manifest_key} before "
            "the deletion back, with every object that was there then; else delete the topic"
        )
    check_not_fenced(root, writer)


def check_not_fenced(root: Root, writer: ManifestWriter) -> None:
    """FencedWriter if the partition has a commit of a newer incarnation."""
    if writer.incarnation is not None and writer.incarnation < root.incarnation:
        raise FencedWriter(
            f"the manifest of {root.ids} was committed by incarnation {root.incarnation}, this node is "
            f"{writer.incarnation}: a copy of its directory has run, or the cluster was taken over. Stop this node; the one "
            "that began last goes on"
        )


def advance(root: Root, by: Author, **changes: Any) -> Root:
    """The next commit with these fields changed, by a writer that may make it (`check_writer`)."""
    check_writer(root, by.writer)
    commit = root.commit + 1
    stamped: dict[str, Any] = {
        "line": root.line or by.commit_id,
        "commit": commit,
        "recent": (*root.recent, CommitId(commit, by.commit_id))[-RECENT_COMMITS:],
        "committed_at": by.now_ms,
        "writer": by.writer,
        "incarnation": root.incarnation if by.writer.incarnation is None else by.writer.incarnation,
    }
    return replace(root, **stamped, **changes)


def next_stamp(root: Root, by: Author) -> Stamp:
    return Stamp(root.commit + 1, by.now_ms)


def check_epoch(root: Root, leader_epoch: int) -> None:
    if leader_epoch < root.leader_epoch:
        raise FencedWriter(
            f"the manifest of {root.ids} belongs to leader epoch {root.leader_epoch}, not {leader_epoch}; "
            "another replica leads it now"
        )


def may_begin(root: Root, base: int, log_start: int) -> bool:
    """An extension begins at `end`, or past it if every offset between is below log start (the gap is recorded)."""
    return base == root.end or root.end < base <= max(root.log_start, log_start)


def extend(root: Root, entry: Entry, by: Author, *, leader_epoch: int, last_record_epoch: int, log_start: int) -> Root:
    """Appends a verified range. FencedWriter under an older epoch, InvalidRequest if it does not begin at `end`, or names
    a key that was condemned or removed.

    Only the root's own lists are searched for the keys: those in pages were entries that ended at or below `end`.
    """
    check_epoch(root, leader_epoch)
    log_start = max(root.log_start, log_start)
    if not may_begin(root, entry.base, log_start):
        raise InvalidRequest(f"an extension of {root.ids} must begin at offset {root.end}, not at {entry.base}")
    if not entry.base < entry.end:
        raise InvalidRequest(f"an extension of {root.ids} must hold offsets, not [{entry.base}, {entry.end})")
    if {entry.key, entry.sidecar_key} & set(root.keys()):
        raise InvalidRequest(f"{entry.key} stands in the manifest of {root.ids} already; upload under a new uuid")
    stamp = next_stamp(root, by)
    removed = root.removed
    if root.sidecar is not None and root.sidecar.alone:
        removed = (*removed, Removed(stamp, key=root.sidecar.key))
    entry = replace(entry, added=stamp, gap_from=None if entry.base == root.end else root.end)
    return advance(
        root,
        by,
        leader_epoch=leader_epoch,
        last_record_epoch=last_record_epoch,
        log_start=min(log_start, entry.end),
        end=entry.end,
        sidecar=NewestSidecar(entry.sidecar_key, entry.sections),
        entries=(*root.entries, entry),
        removed=removed,
    )


def claim_epoch(root: Root, leader_epoch: int, by: Author) -> Root:
    """Raises the leader epoch and, as every commit does, records the incarnation. FencedWriter under an older epoch."""
    check_epoch(root, leader_epoch)
    return advance(root, by, leader_epoch=leader_epoch)


def pin(root: Root, name: str, by: Author) -> Root:
    """Keeps the state as of this very commit until `unpin`."""
    if PIN_NAME.match(name) is None:
        raise InvalidRequest(f"{name!r} cannot name a pin: 1 to 64 letters, digits, '.', '_', ':' and '-'")
    if any(known.name == name for known in root.pins):
        raise InvalidRequest(f"{root.ids} has a pin named {name!r} already; remove it first, or choose another name")
    if len(root.pins) == MAX_PINS:
        raise InvalidRequest(f"{root.ids} has {MAX_PINS} pins, the most there may be; remove one")
    return advance(root, by, pins=(*root.pins, Pin(name, root.commit + 1, root.log_start, root.end)))


def unpin(root: Root, name: str, by: Author) -> Root:
    if all(known.name != name for known in root.pins):
        raise InvalidRequest(f"{root.ids} has no pin named {name!r}")
    return advance(root, by, pins=tuple(known for known in root.pins if known.name != name))


def condemn(root: Root, orphans: Collection[str], by: Author) -> Root:
    """Marks never-referenced keys. The caller has looked for them in the pages; the root is looked through here."""
    if len(root.condemned) + len(orphans) > MAX_CONDEMNED:
        raise InvalidRequest(
            f"at most {MAX_CONDEMNED} keys of {root.ids} may stand condemned; drop those that are gone"
        )
    named = set(orphans) & set(root.keys())
    if named:
        raise InvalidRequest(f"{min(named)} is referenced by the manifest of {root.ids}; it is no orphan")
    stamp = next_stamp(root, by)
    return advance(root, by, condemned=(*root.condemned, *(Condemned(key, stamp) for key in orphans)))


def touch(root: Root, by: Author) -> Root:
    """A commit that changes nothing: its object's time is the store's clock."""
    return advance(root, by)


def delete(root: Root, by: Author) -> Root:
    """The terminal commit. It names nothing: every object of the partition may go after the grace, pinned or not."""
    return advance(root, by, state=State.DELETED, sidecar=None, entries=(), removed=(), condemned=(), pins=(), pages=())


def broken(root: Root) -> str | None:
    """What is wrong with a root by itself, as a sentence; None if it is sound."""
    if not 0 <= root.log_start <= root.end:
        return f"log start {root.log_start} lies outside [0, {root.end}]"
    if [known.commit for known in root.recent] != list(range(root.commit - len(root.recent) + 1, root.commit + 1)):
        return f"the recent commits do not lead up to commit {root.commit}"
    if len(root.recent) != min(root.commit, RECENT_COMMITS):
        return f"{len(root.recent)} recent commits are recorded at commit {root.commit}"
    if bool(root.line) != bool(root.commit):
        return f"its line is {root.line!r} at commit {root.commit}"
    if root.state is State.DELETED:
        return "a deleted partition names objects" if any(root.keys()) else None
    return _broken_tiling(root) or _broken_keys(root)


def _broken_tiling(root: Root) -> str | None:
    spans: list[PageRef | Entry] = [*root.live_pages, *root.entries]
    for before, span in zip([None, *spans], spans, strict=False):
        if not 0 <= span.base < span.end:
            return f"a live range [{span.base}, {span.end}) is empty or negative"
        if before is None:
            if span.base > root.log_start:
                return f"offsets [{root.log_start}, {span.base}) from log start on are in no live range"
            continue
        if span.base < before.end:
            return f"the live ranges [{before.base}, {before.end}) and [{span.base}, {span.end}) overlap"
        if span.base != before.end and (span.gap_from != before.end or span.base > root.log_start):
            return f"offsets [{before.end}, {span.base}) are in no live range"
    if spans and spans[-1].end != root.end:
        return f"the last live range ends at {spans[-1].end}, not at {root.end}"
    if not spans and root.log_start != root.end:
        return f"offsets [{root.log_start}, {root.end}) are in no live range"
    return None


def _broken_keys(root: Root) -> str | None:
    live = {key for entry in root.entries for key in (entry.key, entry.sidecar_key)} | {page.key for page in root.pages}
    gone = {key for item in root.removed for key in item.keys} | {condemned.key for condemned in root.condemned}
    if live & gone:
        return f"{min(live & gone)} is live and removed at once"
    names = [known.name for known in root.pins]
    if len(set(names)) != len(names):
        return "two pins have one name"
    return None


def broken_step(old: Root, new: Root) -> str | None:
    """Which promise between two commits `new` would break, as a sentence; None if none."""
    if new.commit != old.commit + 1 or new.ids != old.ids:
        return f"commit {new.commit} of {new.ids} does not follow commit {old.commit} of {old.ids}"
    if old.state is State.DELETED:
        return "nothing follows a deletion"
    if old.line not in ("", new.line):
        return f"the line would change from {old.line} to {new.line}"
    for name in ("leader_epoch", "incarnation", "log_start", "end", "swept"):
        if getattr(new, name) < getattr(old, name):
            return f"{name} would fall from {getattr(old, name)} to {getattr(new, name)}"
    gone = {key for item in old.removed for key in item.keys} | {condemned.key for condemned in old.condemned}
    for entry in new.entries:
        if entry.key in gone or entry.sidecar_key in gone:
            return f"{entry.key} was removed or condemned and would be referenced again"
    return None
