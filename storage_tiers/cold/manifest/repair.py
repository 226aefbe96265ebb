"""Recreates a manifest where the store has gone backwards (I10): from evidence to a manifest, or to a refusal. Pure.

A listing alone does not show which objects were committed: it also holds orphans, offloads of fenced writers, and objects
that were removed or compacted away. So the evidence is, in this order: the newest manifest seen, which is saved beside the
local log with a checksum, and its pages; each object that it names, compared with the recorded length and CRC-32C; and the
local log, for objects that are missing.

    basis()  which manifest to begin with                the newest seen, or the one shown if it lacks nothing of it
    plan()   every object that it names is there         that manifest, under a new line
             missing from some offset on, held locally   that manifest up to there; the rest is offloaded again
             lost, but its older segments are there      that manifest, with copies of those segments in its place
             only a sidecar lost, and recoverable        that manifest, with a copy of the segment and a new sidecar
             missing, and the loss accepted by name      that manifest, with a segment without records in its place
             anything else                               refused, with the missing keys

Invariants: no key that was removed or tombstoned becomes live again. Leader epoch, incarnation and `swept` are the largest
seen, the commit number is above every one seen, and log start is the largest seen, but at most `end`. Kept segments keep their
`added`, so that no reader's cursor skips or repeats a commit, and pins up to `end` are kept. `end` falls only to an offset from
which the local log has the records. A range is given up only if the operator named exactly its offsets and the store holds none
of its records; no other record ever gets these offsets.

A deleted partition stays deleted. Not promised: that deleted keys stay deleted where older segments replace a lost compacted
one, since the tombstone may be gone; a repair of a partition whose manifest was never seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.model import (
    RECENT_COMMITS,
    Author,
    CommitId,
    Manifest,
    ManifestPage,
    NewestSidecar,
    PageKind,
    PageNeeded,
    PageRef,
    Pin,
    RemoteSegment,
    Removed,
    Stamp,
    State,
)
from storage_tiers.cold.manifest.pages import (
    MAX_PAGE_REFS,
    MAX_PAGE_SEGMENTS,
    ManifestChange,
    PageWrite,
    page_write,
)
from storage_tiers.cold.manifest.transitions import check_writer
from storage_tiers.types import NO_EPOCH, EpochEntry, OffsetRange


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal: `why` says what is missing and what to do about it."""

    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The surviving objects of a basis. `missing`: keys that the basis or its pages name as live, and that the store lacks or
    holds with other bytes. `lost`: the segments with such a key, in offset order. `unnamed`: first offsets of segments in the
    store that the basis does not name. `earlier`: segments that were once live within the offsets of a lost one, as far as
    the store still holds them. `last_paged`: the last segment of the basis's last live page (None: it has no live page).
    `local`: the offsets in the local log; `epochs`: its leader epochs; `log_start`: the partition's. `found_again`: keys of
    intact segments whose lost sidecar can be written again. `lacks_state`: the sidecar of the basis's end is lost."""

    missing: Collection[str]
    unnamed: Collection[int]
    last_paged: RemoteSegment | None
    local: OffsetRange
    epochs: tuple[EpochEntry, ...]
    log_start: int
    lost: tuple[RemoteSegment, ...] = ()
    earlier: tuple[RemoteSegment, ...] = ()
    found_again: Collection[str] = ()
    lacks_state: bool = False


#: The replacement of a part of a lost segment: a copy of an earlier segment, a copy of the segment itself if only its sidecar
#: is lost, or (as a range) a segment without records.
Part = RemoteSegment | OffsetRange


@dataclass(frozen=True, slots=True)
class Substitution:
    """`parts`, in offset order, replace the segment `lost`."""

    lost: RemoteSegment
    parts: tuple[Part, ...]

    @property
    def copied(self) -> tuple[RemoteSegment, ...]:
        return tuple(part for part in self.parts if isinstance(part, RemoteSegment))

    @property
    def is_whole(self) -> bool:
        """Whether only the sidecar is lost: the segment is copied with a new one."""
        return self.parts == (self.lost,)

    @property
    def empty(self) -> tuple[OffsetRange, ...]:
        return tuple(part for part in self.parts if isinstance(part, OffsetRange))


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """`basis` up to `end`, without the segments `dropped`. The local log is offloaded again from `end` to `again`."""

    basis: Manifest
    end: int
    again: int
    log_start: int
    last_record_epoch: int
    sidecar: NewestSidecar | None
    dropped: tuple[RemoteSegment, ...] = ()
    substitutions: tuple[Substitution, ...] = ()
    #: Whether the sidecar of its end is written again, with the epochs that the node knows and without producers.
    lacks_state: bool = False

    @property
    def summary(self) -> str:
        kept = f"commit {self.basis.commit} is committed again, up to offset {self.end}"
        if whole := joined(each.lost for each in self.substitutions if each.is_whole):
            kept += f"; offsets {_spelled(whole)}, whose segments lack only their .idx, are copied with a new index"
        if copied := joined(part for each in self.substitutions if not each.is_whole for part in each.copied):
            kept += (
                f"; offsets {_spelled(copied)} are copied from the segments that compaction had replaced: a key that was "
                "deleted since may have its last value again"
            )
        if empty := joined(part for each in self.substitutions for part in each.empty):
            kept += f"; offsets {_spelled(empty)} are given up and hold no record from now on"
        if self.lacks_state:
            kept += (
                "; the .idx of its end, whose records expired, is written again without producers: if the disk is lost "
                "as well, a batch that a producer sends again may be stored twice"
            )
        if self.end == self.again:
            return kept
        return f"{kept}; offsets [{self.end}, {self.again}) are offloaded again from the local log"


def joined(segments: Iterable[Part]) -> tuple[OffsetRange, ...]:
    """The offsets of segments or ranges in offset order, neighbours as one."""
    found: list[OffsetRange] = []
    for segment in segments:
        if found and found[-1].end == segment.base:
            found[-1] = OffsetRange(found[-1].base, segment.end)
        else:
            found.append(OffsetRange(segment.base, segment.end))
    return tuple(found)


def _spelled(ranges: Iterable[OffsetRange]) -> str:
    return " and ".join(f"[{each.base}, {each.end})" for each in ranges)


def basis(
    shown: Manifest | None, saved: Manifest | None, lost: str | None, local: OffsetRange, *, uncommitted: bool = False
) -> Manifest | Refused | None:
    """The manifest that a repair begins with; None if the manifest needs none.

    `shown` is the store's manifest (None: absent or unreadable), `saved` the newest one seen here. `lost` names something
    live in the saved manifest that the shown one lacks (`lineage.lost`; None: nothing, or one of the two is absent). `local`
    is the range of offsets in the local log. `uncommitted`: whether everything else shows that there never was a manifest,
    which counts if both manifests are absent."""
    if shown is not None and shown.state is State.DELETED:
        return Refused(
            f"{shown.ids} is deleted in the bucket, which is final for a partition. If that was a "
            f"mistake, put back the version of {shown.ids.manifest_key} from before the deletion. "
            "Otherwise delete the topic and create it again"
        )
    if saved is None:
        if shown is not None or uncommitted:
            return None
        return Refused(
            "the bucket has no manifest of it, and none was ever seen here, so the committed objects are "
            "unknown. Put the newest version of its manifest back"
        )
    if saved.state is State.DELETED:
        return Refused(f"{saved.ids} is deleted; delete the topic and create it again")
    seen = lineage.seen_of(saved)
    if shown is None or seen is None:
        return saved
    if lineage.fault(shown, seen) is None and lost is None:
        return None
    if shown.line != saved.line and shown.commit > saved.commit and lost is None:
        if local.end > saved.end and shown.end > saved.end:
            return Refused(
                f"another node has repaired {saved.ids} and continued to offset {shown.end}. The local log has other "
                f"records from offset {saved.end} on, which would be discarded. Consume these from this node and save them "
                "first; nothing was changed"
            )
        return shown  # another node's repair, which lacks nothing
    stray = _stray(shown, saved)
    if stray is not None:
        return Refused(
            f"the bucket shows another history of {saved.ids} than the one seen here: its segment [{stray.base}, {stray.end}) "
            f"came with a commit {stray.added.commit} that was never seen here. If this node's history is the one to keep, put "
            f"back the version of {saved.ids.manifest_key} from before that commit"
        )
    return saved


def plan(
    manifest: Manifest, shown: Manifest | None, evidence: Evidence, accepted: Sequence[OffsetRange] = ()
) -> RepairPlan | Refused:
    """Plans a repair. `accepted` must be exactly the ranges that cannot be recovered: the caller accepts their loss."""
    log_start = max(manifest.log_start, evidence.log_start, 0 if shown is None else shown.log_start)
    beyond_end = [base for base in evidence.unnamed if base >= manifest.end]
    local = evidence.local
    if (
        beyond_end
        and max(beyond_end) > manifest.end
        and not (local.base <= manifest.end and local.end > max(beyond_end))
    ):
        return Refused(
            f"the newest manifest of {manifest.ids} seen here ends at {manifest.end}, but the bucket holds segments up "
            f"to one that begins at {max(beyond_end)}: there was a newer manifest. The local log holds [{local.base}, "
            f"{local.end}) and not those records. Put the newest version of {manifest.ids.manifest_key} back"
        )
    pages = sorted(
        set(evidence.missing) - {key for segment in evidence.lost for key in (segment.key, segment.sidecar_key)}
    )
    if pages:
        return Refused(
            f"{pages[0]} is missing, or is not what was written. It names segments that nothing else names: put it back"
        )
    lost = [segment for segment in evidence.lost if segment.end > log_start]
    cut = next((segment for segment in lost if _stands_in(manifest, segment, log_start, evidence)), None)
    if cut is not None:
        lost = [segment for segment in lost if segment.end <= cut.base]
    if manifest == shown and not lost:
        accepted = ()  # an interrupted repair has already given them up
    substitutions = tuple(Substitution(each, _parts(each, evidence)) for each in lost)
    refused = _unaccepted(manifest, substitutions, evidence, accepted)
    if refused is not None:
        return refused
    if cut is not None:
        return replace(_cut(manifest, manifest.segments.index(cut), log_start, evidence), substitutions=substitutions)
    whole = RepairPlan(
        manifest, manifest.end, manifest.end, min(log_start, manifest.end), manifest.last_record_epoch, manifest.sidecar
    )
    newest = manifest.sidecar
    is_replaced = newest is not None and any(each.lost.sidecar_key == newest.key for each in substitutions)
    return replace(whole, substitutions=substitutions, lacks_state=evidence.lacks_state and not is_replaced)


def _parts(lost: RemoteSegment, evidence: Evidence) -> tuple[Part, ...]:
    """The newest segments inside the lost one's offsets, and ranges of offsets that none of them covers. A compacted segment
    covers exactly those that it replaced, so two of them lie apart or one inside the other."""
    if lost.key in evidence.found_again:
        return (lost,)
    # If only the sidecar is lost, the records are still there, and older copies would bring deleted keys back.
    earlier = evidence.earlier if lost.key in evidence.missing else ()
    chosen: list[RemoteSegment] = []
    inside = (each for each in earlier if lost.base <= each.base and each.end <= lost.end and each.key != lost.key)
    for each in sorted(inside, key=lambda each: each.added.commit, reverse=True):
        if all(each.end <= other.base or other.end <= each.base for other in chosen):
            chosen.append(each)
    parts: list[Part] = []
    at = lost.base
    for each in sorted(chosen, key=lambda each: each.base):
        if at < each.base:
            parts.append(OffsetRange(at, each.base))
        parts.append(each)
        at = each.end
    return (*parts, OffsetRange(at, lost.end)) if at < lost.end else tuple(parts)


def repaired(repair: RepairPlan, shown: Manifest | None, by: Author) -> Manifest:
    """The manifest to commit over the one shown. Raises FencedWriter if the writer has an older incarnation."""
    manifest = repair.basis
    known = [manifest] if shown is None else [manifest, shown]
    for each in known:
        check_writer(each, by.writer)
    newest = max(known, key=lambda each: each.commit)
    commit = newest.commit + 1
    dropped = tuple(Removed(Stamp(commit, by.now_ms), segment) for segment in repair.dropped)
    return replace(
        manifest,
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
        segments=manifest.segments[: len(manifest.segments) - len(dropped)],
        removed=(*manifest.removed, *dropped),
        pins=_pins(known, repair.end),
        swept=max(each.swept for each in known),
    )


Fillers = Mapping[str, tuple[RemoteSegment, ...]]


def with_fillers(manifest: Manifest, fillers: Fillers, by: Author) -> ManifestChange:
    """The manifest of a repair, with each lost segment replaced by the segments that `fillers` has for its key. Raises
    PageNeeded."""
    stamp = Stamp(manifest.commit, by.now_ms)
    swap = _Swap(manifest, fillers, stamp, by)
    pages = tuple(
        itertools.chain.from_iterable(
            swap.pages(ref) if ref.kind is PageKind.LIVE else (ref,) for ref in manifest.pages
        )
    )
    segments, sidecar = swap.segments(manifest.segments), manifest.sidecar
    if sidecar is not None and sidecar.key in swap.sidecars:
        filler = swap.sidecars[sidecar.key]
        sidecar = NewestSidecar(filler.sidecar_key, filler.sections)
    new = replace(manifest, segments=segments, pages=pages, sidecar=sidecar, removed=(*manifest.removed, *swap.removed))
    return ManifestChange(new, tuple(swap.writes))


class _Swap:
    """Replaces lost segments, also inside pages, which are written again."""

    def __init__(self, manifest: Manifest, fillers: Fillers, stamp: Stamp, by: Author) -> None:
        self._ids = manifest.ids
        self._fillers = fillers
        self._bases = [each[0].base for each in fillers.values()]
        self._stamp = stamp
        self._by = by
        self.removed: list[Removed] = []
        self.writes: list[PageWrite] = []
        self.sidecars: dict[str, RemoteSegment] = {}

    def segments(self, segments: tuple[RemoteSegment, ...]) -> tuple[RemoteSegment, ...]:
        return tuple(itertools.chain.from_iterable(map(self._in_place_of, segments)))

    def _in_place_of(self, segment: RemoteSegment) -> tuple[RemoteSegment, ...]:
        found = self._fillers.get(segment.key)
        if found is None:
            return (segment,)
        first, *others = (replace(each, added=self._stamp) for each in found)
        self.removed.append(Removed(self._stamp, segment))
        self.sidecars[segment.sidecar_key] = found[-1]
        return (replace(first, gap_from=segment.gap_from), *others)

    def pages(self, ref: PageRef) -> tuple[PageRef, ...]:
        if not any(ref.base <= base < ref.end for base in self._bases):
            return (ref,)
        known = self._by.pages.get(ref.key)
        if known is None:
            raise PageNeeded(ref)
        self.removed.append(Removed(self._stamp, key=ref.key))
        segments = self.segments(known.segments)
        refs = tuple(itertools.chain.from_iterable(map(self.pages, known.pages)))
        written = [
            *(ManifestPage(ref.kind, some) for some in _bunches(segments, MAX_PAGE_SEGMENTS)),
            *(ManifestPage(ref.kind, pages=some) for some in _bunches(refs, MAX_PAGE_REFS)),
        ]
        writes = [page_write(self._ids, page, self._by) for page in written]
        self.writes += writes
        return tuple(write.ref for write in writes)


T = TypeVar("T")


def _bunches(items: tuple[T, ...], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _stands_in(manifest: Manifest, segment: RemoteSegment, log_start: int, evidence: Evidence) -> bool:
    """Whether the local log holds everything from a lost segment on, and no pin keeps that segment. Segments in pages cannot be
    cut off."""
    local = evidence.local
    if local.base > max(segment.base, log_start) or local.end < manifest.end or segment not in manifest.segments:
        return False
    return not any(pin.end > segment.base for pin in manifest.pins)


def _unaccepted(
    manifest: Manifest, substitutions: Sequence[Substitution], evidence: Evidence, accepted: Sequence[OffsetRange]
) -> Refused | None:
    """The refusal, unless `accepted` names exactly the offsets that no object in the store holds. A segment that is there is
    never given up."""
    intact = next((each.lost for each in substitutions if each.empty and each.lost.key not in evidence.missing), None)
    if intact is not None:
        return Refused(
            f"{intact.sidecar_key} is missing, or is not what was uploaded, but the segment {intact.key} is intact: offsets "
            f"[{intact.base}, {intact.end}) are not lost. No new index can be made, because the segments beside it do not "
            "show which of its transactions were aborted: put the .idx back"
        )
    lost = [each.lost for each in substitutions if each.empty]
    ranges = joined(part for each in substitutions for part in each.empty)
    if sorted(accepted) == list(ranges):
        return None
    if not lost:
        return Refused(
            f"offsets {_spelled(sorted(accepted))} are not lost: nothing is given up. Run this without --accept-loss"
        )
    flags = " ".join(f"--accept-loss {manifest.ids.partition}:{each.base}-{each.end}" for each in ranges)
    missing = frozenset(evidence.missing)
    keys = [key for segment in lost for key in (segment.key, segment.sidecar_key) if key in missing]
    pins = {pin.name for pin, segment in itertools.product(manifest.pins, lost) if pin.end > segment.base}
    local = evidence.local
    kept = f"the local log holds [{local.base}, {local.end}) and cannot replace them"
    if pins:
        kept = f"the pin {min(pins)} keeps the segment"
    return Refused(
        f"{keys[0]} is missing, or is not what was uploaded{_and_more(len(keys) - 1)}: offsets {_spelled(ranges)}; {kept}; put "
        "the object back. Only if no copy of it exists anywhere: to give up the records of exactly these offsets for "
        f"ever, add {flags}"
    )


def _and_more(count: int) -> str:
    return f", and {count} more" if count else ""


def _stray(shown: Manifest, saved: Manifest) -> RemoteSegment | None:
    """A segment that is live in the manifest shown, but neither live nor removed in the saved one: another node continued
    from an older manifest."""
    if shown.recent and shown.recent[-1] in saved.recent:
        return None
    known = {segment.key for segment in saved.segments}
    known.update(item.segment.key for item in saved.removed if item.segment is not None)
    paged = max((ref.last_commit for ref in saved.pages), default=0)
    return next(
        (segment for segment in shown.segments if segment.key not in known and segment.added.commit > paged), None
    )


def _cut(manifest: Manifest, at: int, log_start: int, evidence: Evidence) -> RepairPlan:
    """`manifest` up to the segment at index `at`: the local log replaces what follows."""
    segment = manifest.segments[at]
    before = manifest.segments[at - 1] if at else evidence.last_paged
    end = segment.base if before is None else before.end
    sidecar = None if before is None else NewestSidecar(before.sidecar_key, before.sections)
    epoch = max((known.epoch for known in evidence.epochs if known.start_offset < end), default=NO_EPOCH)
    return RepairPlan(manifest, end, manifest.end, min(log_start, end), epoch, sidecar, manifest.segments[at:])


def _pins(known: list[Manifest], end: int) -> tuple[Pin, ...]:
    """The pins of both manifests that end at or below `end`. If both have a pin of the same name, the basis's pin is kept."""
    pins: dict[str, Pin] = {}
    for manifest in known:
        for pin in manifest.pins:
            if pin.end <= end:
                pins.setdefault(pin.name, pin)
    return tuple(pins.values())
