"""Checks a manifest and its pages against each other: recomputes every number that follows from other numbers. Pure.

Functions yield faults, some with their kind. `transitions.broken` checks the invariants that a writer keeps. This module finds
the other faults: wrong sums and bounds of pages, stamps without a commit, keys of other partitions, pins of states that never
existed, and epochs and incarnations above those of their owner.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from service.fsck.findings import FindingKind
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import (
    MAX_PAGES,
    MAX_PINS,
    MAX_TOMBSTONED,
    PIN_NAME,
    Ids,
    Manifest,
    ManifestPage,
    PageKind,
    PageRef,
    Pin,
    RemoteSegment,
    Removed,
    Stamp,
    State,
)
from storage_tiers.cold.manifest.pages import MAX_PAGE_SEGMENTS
from storage_tiers.cold.manifest.transitions import broken

Fault = tuple[FindingKind, str]
_COMMIT_ID = re.compile(r"[0-9a-f]{32}\Z")


def manifest_faults(manifest: Manifest) -> Iterator[Fault]:
    fault = broken(manifest)
    if fault is not None:
        yield _kind_of(fault), fault
    yield from _wrong(_manifest_numbers(manifest))
    yield from _wrong(_lists(manifest))


def _manifest_numbers(manifest: Manifest) -> Iterator[str]:
    writer = manifest.writer
    if manifest.committed_at < 0 or writer.node_id < -1 or not writer.name:
        yield f"its writer is impossible: {writer.name!r} of node {writer.node_id} at {manifest.committed_at}"
    if manifest.commit < 1:
        yield f"commit {manifest.commit} was never made; the first is 1"
    if writer.incarnation is not None and writer.incarnation != manifest.incarnation:
        yield f"its writer's incarnation is {writer.incarnation}, but its own is {manifest.incarnation}"
    if manifest.leader_epoch < -1 or not -1 <= manifest.last_record_epoch <= manifest.leader_epoch:
        yield f"its last record's leader epoch is {manifest.last_record_epoch}, but its own is {manifest.leader_epoch}"
    if manifest.swept > manifest.commit:
        yield f"'swept' is commit {manifest.swept}, which has not been made; the newest is {manifest.commit}"
    began = [recent.id for recent in manifest.recent if manifest.recent[0].commit == 1]
    if _COMMIT_ID.match(manifest.line) is None or (began and manifest.line not in began):
        yield f"its line is {manifest.line!r}, which is not the id of one of its commits"
    for recent in manifest.recent:
        if _COMMIT_ID.match(recent.id) is None:
            yield f"the id of commit {recent.commit} is {recent.id!r}, not 32 hexadecimal digits"
    if len({recent.id for recent in manifest.recent}) != len(manifest.recent):
        yield "two recent commits have one id"
    if manifest.state is State.LIVE and (manifest.sidecar is None) != (manifest.end == 0):
        yield f"it ends at offset {manifest.end} but {'names no' if manifest.sidecar is None else 'names a'} newest sidecar"


def _lists(manifest: Manifest) -> Iterator[str]:
    for name, count, most in (
        ("pages", len(manifest.pages), MAX_PAGES),
        ("pins", len(manifest.pins), MAX_PINS),
        ("tombstoned keys", len(manifest.tombstoned), MAX_TOMBSTONED),
    ):
        if count > most:
            yield f"it has {count} {name}; the maximum is {most}"
    kinds = [ref.kind for ref in manifest.pages]
    if kinds != sorted(kinds, key=lambda kind: kind is PageKind.REMOVED):
        yield "a live page follows a removed one"
    for segment in manifest.segments:
        yield from segment_faults(manifest, segment)
    for item in manifest.removed:
        yield from removed_faults(manifest, item)
    for tombstoned in manifest.tombstoned:
        if not _is_of(manifest.ids, tombstoned.key, keys.SegmentKey | keys.SidecarKey | keys.PageKey):
            yield f"it has tombstoned {tombstoned.key}, which is not a key of the partition"
        yield from _stamp(manifest, tombstoned.at, f"{tombstoned.key} was tombstoned")
    for pin in manifest.pins:
        if PIN_NAME.match(pin.name) is None:
            yield f"{pin.name!r} is not a valid name of a pin"
        if not (1 <= pin.commit <= manifest.commit and pin.log_start <= manifest.log_start and pin.end <= manifest.end):
            yield f"the pin {pin.name!r} of commit {pin.commit}, [{pin.log_start}, {pin.end}), names a state that never existed"
    if len({pin.commit for pin in manifest.pins}) != len(manifest.pins):
        yield "two pins hold the same commit; each must hold its own"


def segment_faults(manifest: Manifest, segment: RemoteSegment) -> Iterator[str]:
    """The faults of a segment, live or removed."""
    what = f"[{segment.base}, {segment.end})"
    yield from _stamp(manifest, segment.added, f"{what} was added")
    if not (0 <= segment.base < segment.end and segment.end <= manifest.end):
        yield f"the segment {what} is empty, or not below the end {manifest.end}"
    if segment.gap_from is not None and not segment.gap_from < segment.base:
        yield f"{what} has a gap from {segment.gap_from} on, which is not before its base"
    named = _parsed(manifest.ids, segment.key)
    if not isinstance(named, keys.SegmentKey) or (segment.position == 0 and named.base != segment.base):
        yield f"{what} is in {segment.key}, which is not the key of such a segment"
    named = _parsed(manifest.ids, segment.sidecar_key)
    if not isinstance(named, keys.SidecarKey) or named.base != segment.base:
        yield f"{what} has the sidecar {segment.sidecar_key}, which is not the key of such a sidecar"
    elif named.epoch > manifest.leader_epoch or (
        isinstance(named, keys.SegmentKey) and named.epoch > manifest.leader_epoch
    ):
        yield f"{segment.key} has a leader epoch above the newest one, {manifest.leader_epoch}"
    if not segment.base <= segment.max_timestamp_offset < segment.end:
        yield f"the largest timestamp of {what} is at offset {segment.max_timestamp_offset}, outside"
    if segment.bytes != segment.length:
        yield f"{what} has {segment.bytes} bytes of batches, but a length of {segment.length}"


def removed_faults(manifest: Manifest, item: Removed) -> Iterator[str]:
    if item.segment is not None:
        yield from segment_faults(manifest, item.segment)
        yield from _stamp(manifest, item.at, f"[{item.segment.base}, {item.segment.end}) was removed")
        if item.at.commit <= item.segment.added.commit:
            what = f"[{item.segment.base}, {item.segment.end})"
            yield f"{what} was removed by commit {item.at.commit}, before {item.segment.added.commit} added it"
        return
    yield from _stamp(manifest, item.at, f"{item.key} was removed")
    if not _is_of(manifest.ids, item.key, keys.PageKey | keys.SidecarKey):
        yield f"it has removed {item.key}, which is not the key of a page or a sidecar of the partition"


def page_faults(manifest: Manifest, ref: PageRef, page: ManifestPage) -> Iterator[Fault]:
    """The faults of a page, compared with its reference, and of its segments, compared with the manifest."""
    items: Sequence[RemoteSegment] = page.segments or [
        item.segment for item in page.removed if item.segment is not None
    ]
    stamps = [segment.added for segment in page.segments] + [item.at for item in page.removed]
    found = {
        "kind": PageKind.REMOVED if page.removed else PageKind.LIVE,
        "base": min((segment.base for segment in items), default=0),
        "end": max((segment.end for segment in items), default=0),
        "count": len(page),
        "min_timestamp": min((segment.min_timestamp for segment in items), default=-1),
        "max_timestamp": max((segment.max_timestamp for segment in items), default=-1),
        "records": sum(segment.records for segment in items),
        "bytes": sum(segment.bytes for segment in items),
        "last_commit": max((stamp.commit for stamp in stamps), default=0),
        "first_removed_ms": min((item.at.time_ms for item in page.removed), default=0),
        "gap_from": page.segments[0].gap_from if page.segments else None,
    }
    if page.pages:
        children = page.pages
        found |= {
            "level": 1,
            "kind": children[0].kind,
            "base": min(child.base for child in children),
            "end": max(child.end for child in children),
            "count": sum(child.count for child in children),
            "min_timestamp": min(child.min_timestamp for child in children),
            "max_timestamp": max(child.max_timestamp for child in children),
            "records": sum(child.records for child in children),
            "bytes": sum(child.bytes for child in children),
            "last_commit": max(child.last_commit for child in children),
            "first_removed_ms": min(child.first_removed_ms for child in children),
            "gap_from": children[0].gap_from,
        }
    for name, value in found.items():
        if getattr(ref, name) != value:
            yield (
                FindingKind.WRONG_PAGE,
                f"{name} is {_plain(getattr(ref, name))} in the manifest, but {_plain(value)} in the page",
            )
    if page.segments and page.removed:
        yield FindingKind.WRONG_PAGE, f"it is {page.kind.value} and holds both live and removed segments"
    if len(page) > MAX_PAGE_SEGMENTS:
        yield FindingKind.WRONG_PAGE, f"it holds {len(page)} segments; the maximum is {MAX_PAGE_SEGMENTS}"
    if not isinstance(_parsed(manifest.ids, ref.key), keys.PageKey):
        yield FindingKind.WRONG_PAGE, "its key is not the key of a page of the partition"
    for segment in page.segments:
        for fault in segment_faults(manifest, segment):
            yield FindingKind.WRONG_PAGE, fault
    for item in page.removed:
        for fault in removed_faults(manifest, item):
            yield FindingKind.WRONG_PAGE, fault


def tiling_faults(manifest: Manifest, segments: Iterable[RemoteSegment]) -> Iterator[Fault]:
    """The faults in the sequence of all live segments, including those in pages."""
    before: RemoteSegment | None = None
    for segment in segments:
        if before is None and segment.base > manifest.log_start:
            yield (
                FindingKind.HOLE,
                f"offsets [{manifest.log_start}, {segment.base}) from log start on are in no live segment",
            )
        elif before is not None and segment.base < before.end:
            yield (
                FindingKind.OVERLAP,
                f"the live segments [{before.base}, {before.end}) and [{segment.base}, {segment.end}) overlap",
            )
        elif before is not None and segment.base != before.end:
            if segment.gap_from != before.end or segment.base > manifest.log_start:
                yield FindingKind.HOLE, f"offsets [{before.end}, {segment.base}) are in no live segment"
        elif before is not None and segment.gap_from is not None:
            yield (
                FindingKind.BAD_MANIFEST,
                f"[{segment.base}, {segment.end}) has a gap from {segment.gap_from} on, but no offsets are missing there",
            )
        before = segment


def pin_faults(pin: Pin, segments: Sequence[RemoteSegment], changes: AbstractSet[int]) -> Iterator[str]:
    """The faults of a pin. `segments` are those that were live right after the pin's commit. `changes` are the commits that
    added or removed a segment."""
    what = f"the pin {pin.name!r} of commit {pin.commit}"
    if pin.commit in changes:
        yield f"{what} was made by a commit that added or removed a segment; a pin needs a commit of its own"
    if not segments:
        if pin.log_start != pin.end:
            yield f"{what} holds [{pin.log_start}, {pin.end}), but no segment of these offsets is left"
        return
    if not segments[0].base <= pin.log_start or segments[-1].end != pin.end or not pin.log_start <= pin.end:
        held = f"[{segments[0].base}, {segments[-1].end})"
        yield f"{what} holds [{pin.log_start}, {pin.end}), but the segments of its commit hold {held}"
    for before, after in itertools.pairwise(segments):
        if after.base != before.end and after.gap_from != before.end:
            yield f"{what} lacks offsets [{before.end}, {after.base})"


def sidecar_faults(manifest: Manifest, last: RemoteSegment | None, named: bool) -> Iterator[str]:
    """The faults of the newest sidecar. `last` is the last live segment; None if there is none. `named` is True if a remote
    segment, live or removed, names the sidecar."""
    newest = manifest.sidecar
    if newest is None:
        return
    parsed = _parsed(manifest.ids, newest.key)
    if not isinstance(parsed, keys.SidecarKey) or parsed.base >= manifest.end:
        yield f"the newest sidecar is {newest.key}, which is not the key of a sidecar below offset {manifest.end}"
    if newest.alone is named:
        yield f"the newest sidecar is {'alone, but a' if named else 'not alone, but no'} segment names it"
    if (
        last is not None
        and last.end == manifest.end
        and (last.sidecar_key, last.sections) != (newest.key, newest.sections)
    ):
        yield f"the newest sidecar is not that of the last segment [{last.base}, {last.end})"


def twice_named(keys_named: Iterable[str]) -> list[str]:
    return sorted(key for key, count in Counter(keys_named).items() if count > 1)


def _stamp(manifest: Manifest, stamp: Stamp, what: str) -> Iterator[str]:
    if not 1 <= stamp.commit <= manifest.commit or stamp.time_ms < 0:
        yield f"{what} by commit {stamp.commit} at {stamp.time_ms}, which is not one of commits 1 to {manifest.commit}"


def _wrong(faults: Iterable[str]) -> Iterator[Fault]:
    for fault in faults:
        yield FindingKind.BAD_MANIFEST, fault


def _parsed(ids: Ids, key: str) -> keys.Key | None:
    """The parsed key; None if it is not a key of this partition."""
    try:
        parsed = keys.parse(key)
    except ValueError:
        return None
    of = (getattr(parsed, "cluster", ""), getattr(parsed, "topic_id", None), getattr(parsed, "partition", -1))
    return parsed if of == (ids.cluster_id, ids.topic_id, ids.partition) else None


def _is_of(ids: Ids, key: str, kind: type | object) -> bool:
    return isinstance(_parsed(ids, key), kind)  # type: ignore[arg-type]


def _plain(value: object) -> object:
    return value.value if isinstance(value, PageKind) else value


def _kind_of(fault: str) -> FindingKind:
    if "overlap" in fault:
        return FindingKind.OVERLAP
    return FindingKind.HOLE if "in no live segment" in fault else FindingKind.BAD_MANIFEST
