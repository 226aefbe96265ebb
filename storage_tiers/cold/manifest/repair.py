"""Making a root again where the store has gone backwards (I10): from evidence to a root, or to why there is none. Pure.

A listing alone cannot tell what was committed from orphans, from a zombie's uploads, from what was removed or compacted away.
So the evidence, in this order, is: the newest root seen (it is saved beside the local log, with a checksum) and its pages; that
every object which it names is there with the very bytes that it names; and the local log, for what is not.

    basis()  which root to begin with                 the newest seen, or the one shown if it lacks nothing of that
    plan()   all that it names is there               that root, under a new line
             missing from some offset on, held locally   that root up to there; the rest is uploaded again
             anything else                            refused, with what is missing

Invariants: nothing that was removed or condemned becomes live again; leader epoch, incarnation and `swept` are the largest
seen, the commit number is above every one seen, log start is the largest seen as far as it lies below `end`; `added` and pins
are kept, so that no reader's cursor skips or repeats a commit. `end` falls only to what the local log continues.

Not promised: a root for a partition of which nobody has seen one. `deleted` is the last state of a partition here, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.model import (
    RECENT_COMMITS,
    Author,
    CommitId,
    Entry,
    NewestSidecar,
    Pin,
    Removed,
    Root,
    Stamp,
    State,
    check_writer,
)
from storage_tiers.types import NO_EPOCH, EpochEntry, OffsetRange


@dataclass(frozen=True, slots=True)
class Refused:
    """`why` says what is missing and what to do about it."""

    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is there of a basis. `missing` are keys that it, or its pages, name as live, and that the store lacks or holds other
    bytes of. `unnamed` are the first offsets of segments that are there and that it does not name. `last_paged` is the last
    entry of its last live page (None: it has none). `local` is what the local log holds, `epochs` its leader epochs,
    `log_start` the partition's own."""

    missing: Collection[str]
    unnamed: Collection[int]
    last_paged: Entry | None
    local: OffsetRange
    epochs: tuple[EpochEntry, ...]
    log_start: int


@dataclass(frozen=True, slots=True)
class Repair:
    """`basis` up to `end`, without the entries `dropped`; from there to `again` the local log is uploaded again."""

    basis: Root
    end: int
    again: int
    log_start: int
    last_record_epoch: int
    sidecar: NewestSidecar | None
    dropped: tuple[Entry, ...] = ()

    @property
    def summary(self) -> str:
        kept = f"commit {self.basis.commit} is committed again, up to offset {self.end}"
        if self.end == self.again:
            return kept
        return f"{kept}; offsets [{self.end}, {self.again}) are uploaded again from the local log"


def basis(shown: Root | None, saved: Root | None, lost: str | None, local: OffsetRange) -> Root | Refused | None:
    """The root that a repair begins with; None if there is nothing to repair.

    `shown` is what the store shows (None: nothing that can be read), `saved` the newest root seen here; `lost` says what of the
    saved one the one shown has lost (`lineage.lost`; None: nothing, or there are not both); `local` is what the local log
    holds."""
    if shown is not None and shown.state is State.DELETED:
        return Refused(
            f"{shown.ids} is deleted in the bucket, which is the last thing that happens to a partition. If that was a "
            f"mistake, put the version of {shown.ids.manifest_key} back that was there before; else delete the topic and "
            "create it anew"
        )
    if saved is None:
        if shown is not None:
            return None
        return Refused(
            "the bucket has no manifest of it, and none was ever seen here: nothing tells what was committed from what was "
            "not. Put the newest version of its manifest back"
        )
    if saved.state is State.DELETED:
        return Refused(f"{saved.ids} is deleted; delete the topic and create it anew")
    seen = lineage.seen_of(saved)
    if shown is None or seen is None:
        return saved
    if lineage.fault(shown, seen) is None and lost is None:
        return None
    if shown.line != saved.line and shown.commit > saved.commit and lost is None:
        if local.end > saved.end and shown.end > saved.end:
            return Refused(
                f"somebody else has repaired {saved.ids} and gone on to offset {shown.end}; the local log has records from "
                f"offset {saved.end} on that are not among them, and would be discarded. Consume them from here and keep "
                "them before anything else; nothing was changed"
            )
        return shown  # somebody else's repair, of which nothing is missing
    stray = _stray(shown, saved)
    if stray is not None:
        return Refused(
            f"the bucket shows another history of {saved.ids} than the one seen here: its range [{stray.base}, {stray.end}) "
            f"came with a commit {stray.added.commit} that was never seen here. If this node's history is the one to keep, put "
            f"the version of {saved.ids.manifest_key} back that was there before that commit"
        )
    return saved


def plan(root: Root, shown: Root | None, evidence: Evidence) -> Repair | Refused:
    log_start = max(root.log_start, evidence.log_start, 0 if shown is None else shown.log_start)
    beyond_end = [base for base in evidence.unnamed if base >= root.end]
    local = evidence.local
    if beyond_end and max(beyond_end) > root.end and not (local.base <= root.end and local.end > max(beyond_end)):
        return Refused(
            f"the newest root of {root.ids} seen here ends at {root.end}, and segments up to one that begins at "
            f"{max(beyond_end)} lie in the bucket: there was a newer one. The local log holds [{local.base}, {local.end}) and "
            f"not those records. Put the newest version of {root.ids.manifest_key} back"
        )
    missing = set(evidence.missing)
    named = {key for entry in root.entries for key in (entry.key, entry.sidecar_key)}
    beyond = sorted(missing - named)
    if beyond:
        return Refused(
            f"{len(missing)} objects are missing, or are not what was uploaded, {beyond[0]} among them. What they hold is too "
            "old for the local log to stand in: put them back"
        )
    gone = [place for place, entry in enumerate(root.entries) if not missing.isdisjoint((entry.key, entry.sidecar_key))]
    lacking = next((place for place in gone if root.entries[place].end > log_start), None)
    if lacking is None:
        return Repair(root, root.end, root.end, min(log_start, root.end), root.last_record_epoch, root.sidecar)
    return _cut(root, lacking, log_start, evidence)


def repaired(repair: Repair, shown: Root | None, by: Author) -> Root:
    """The root to commit over the one shown. FencedWriter for a writer of an older incarnation."""
    root = repair.basis
    known = [root] if shown is None else [root, shown]
    for each in known:
        check_writer(each, by.writer)
    newest = max(known, key=lambda each: each.commit)
    commit = newest.commit + 1
    dropped = tuple(Removed(Stamp(commit, by.now_ms), entry) for entry in repair.dropped)
    return replace(
        root,
        line=by.commit_id,
        commit=commit,
        recent=(*newest.recent, CommitId(commit, by.commit_id))[-RECENT_COMMITS:],
        committed_at=by.now_ms,
        writer=by.writer,
        incarnation=max(by.writer.incarnation or 0, *(each.incarnation for each in known)),
        leader_epoch=max(each.leader_epoch for each in known),
        log_start=repair.log_start,
        end=repair.end,
        last_record_epoch=repair.last_record_epoch,
        sidecar=repair.sidecar,
        entries=root.entries[: len(root.entries) - len(dropped)],
        removed=(*root.removed, *dropped),
        pins=_pins(known, repair.end),
        swept=max(each.swept for each in known),
    )


def _stray(shown: Root, saved: Root) -> Entry | None:
    """A live range of the root shown that the saved one neither has nor removed: somebody went on from an older root."""
    if shown.recent and shown.recent[-1] in saved.recent:
        return None
    known = {entry.key for entry in saved.entries}
    known.update(item.entry.key for item in saved.removed if item.entry is not None)
    paged = max((ref.last_commit for ref in saved.pages), default=0)
    return next((entry for entry in shown.entries if entry.key not in known and entry.added.commit > paged), None)


def _cut(root: Root, place: int, log_start: int, evidence: Evidence) -> Repair | Refused:
    """`root` up to the entry at `place`, if the local log can stand in for what follows."""
    entry, local = root.entries[place], evidence.local
    what = f"{entry.key} is missing, or is not what was uploaded"
    if local.base > max(entry.base, log_start) or local.end < root.end:
        return Refused(
            f"{what}: offsets [{entry.base}, {entry.end}). The local log holds [{local.base}, {local.end}) and cannot stand "
            "in; put the object back"
        )
    pins = [pin.name for pin in root.pins if pin.end > entry.base]
    if pins:
        return Refused(f"{what}, and the pin {pins[0]} keeps what it holds; put the object back")
    before = root.entries[place - 1] if place else evidence.last_paged
    end = entry.base if before is None else before.end
    sidecar = None if before is None else NewestSidecar(before.sidecar_key, before.sections)
    epoch = max((known.epoch for known in evidence.epochs if known.start_offset < end), default=NO_EPOCH)
    return Repair(root, end, root.end, min(log_start, end), epoch, sidecar, root.entries[place:])


def _pins(known: list[Root], end: int) -> tuple[Pin, ...]:
    """Of both roots by name, those of the basis first."""
    pins: dict[str, Pin] = {}
    for root in known:
        for pin in root.pins:
            if pin.end <= end:
                pins.setdefault(pin.name, pin)
    return tuple(pins.values())
