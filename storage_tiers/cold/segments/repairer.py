"""Gathers the evidence for a repair of one partition's manifest, and commits the plan that `manifest.repair` makes from it.

Every live object of the manifest to be committed is verified. A segment's length and CRC-32C are compared with those that the
store reports, or with the bytes read back where it reports none. Each sidecar and each page is read and compared with the
manifest. Nothing is written before all evidence is complete.

A manifest that contains everything seen is compared with a listing of the partition's objects, by key and size. If the listing
lacks some, every object is verified, and the manifest is repaired like a lost one.

If compaction wrote a lost segment, copies of the segments that the lost one replaced fill its offsets, as far as the store
still holds them. The copies get new keys, because the manifest names the old keys as removed, and removed keys are swept. A
segment that lacks only its sidecar is replaced by a copy of itself with a new sidecar. Other lost offsets can only be given up,
by an operator who names them. A segment of empty batches, as compaction also leaves them, then covers these offsets, and
readers skip it.

Bounds: CHECKS_AT_ONCE objects at a time, and the keys of one partition in memory. A verified object may be gone a moment later,
if a sweep or an operator removes it; the next read then fails. Changed bytes of unchanged size are not found under a sound
manifest; `tidelog fsck` finds them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_tiers.cold.manifest import keys, lookup
from storage_tiers.cold.manifest.commit import CommitLoop
from storage_tiers.cold.manifest.model import Author, Manifest, ManifestPage, NewestSidecar, PageRef, RemoteSegment
from storage_tiers.cold.manifest.pages import ManifestChange
from storage_tiers.cold.manifest.repair import (
    Evidence,
    Part,
    Refused,
    RepairPlan,
    basis,
    plan,
    repaired,
    with_fillers,
)
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.lost_sidecar import (
    READ_BACK_BYTES,
    SegmentState,
    download,
    found_again,
    stored_state,
    temporary,
)
from storage_tiers.cold.segments.offloader import ExtendJob, Offloader
from storage_tiers.cold.segments.pinned_sidecars import restore_pinned
from storage_tiers.cold.segments.segment_check import sections_bytes, sidecar_bytes
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierCorrupt, TierObjectMissing, TierUnavailable
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.builder import build_empty_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import EpochEntry, OffsetRange

CHECKS_AT_ONCE = 16
#: The most attempts to compare a listing with a manifest that changes meanwhile.
_LOOKS = 5
#: The most offsets that one batch spans.
_MOST_OF_A_BATCH = 1 << 31


@dataclass(frozen=True, slots=True)
class LocalEvidence:
    """The facts that a repair needs about the local log: the offsets that it holds, their leader epochs, and the partition's
    log start. `uncommitted`: this node has never seen a manifest, and has evicted nothing of the partition."""

    held: OffsetRange
    epochs: tuple[EpochEntry, ...]
    log_start: int
    uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`summary` describes the commit, made or only planned; empty if there is nothing to repair. `refused` is the reason for a
    refusal, else empty. `checked` counts the objects verified."""

    summary: str = ""
    refused: str = ""
    checked: int = 0


class Repairer:
    """Repairs the manifest of one partition from the objects in the bucket and from local records."""

    def __init__(self, store: ObjectStore, loop: CommitLoop, offloader: Offloader) -> None:
        self._store = store
        self._loop = loop
        self._offloader = offloader

    async def repair(
        self, local: LocalEvidence, *, apply: bool, accepted: Sequence[OffsetRange] = ()
    ) -> tuple[RepairReport, Manifest | None]:
        """Returns a report of the plan and, with `apply`, the manifest committed (None if none was needed). `accepted` are the
        offsets whose loss the caller accepts. Errors: the store's, and FencedWriter."""
        report, manifest = await self._repair_manifest(local, accepted, apply=apply)
        if not report.refused and (current := manifest or await self._loop.shown()) is not None:
            pinned = await restore_pinned(self._store, self._loop, current, local.epochs, apply=apply)
            summary = "; ".join(filter(None, (report.summary, pinned.summary)))
            if summary and pinned.refused:
                summary += f". {pinned.refused}"
            report = RepairReport(summary, "" if summary else pinned.refused, report.checked)
        return report, manifest

    async def _repair_manifest(
        self, local: LocalEvidence, accepted: Sequence[OffsetRange], *, apply: bool
    ) -> tuple[RepairReport, Manifest | None]:
        # Checked before the manifest is read, so that the read sees a manifest that a first commit creates meanwhile.
        uncommitted = local.uncommitted and await self._holds_nothing()
        shown, saved = await self._loop.shown(), await self._loop.seen()
        lost = None
        if shown is not None and saved is not None:
            lost = await self._loop.lost(shown, saved)
        begin = basis(shown, saved, lost, local.held, uncommitted=uncommitted)
        is_sound = begin is None and shown is not None
        if is_sound:
            begin = shown = await self._lacking(local.log_start)
        if begin is None:
            return RepairReport(), None
        if isinstance(begin, Refused):
            return RepairReport(refused=begin.why), None
        evidence, states, checked = await self._evidence(begin, shown, local)
        if is_sound and not evidence.missing and not evidence.lacks_state:
            return RepairReport(), None
        found = plan(begin, shown, evidence, accepted)
        if isinstance(found, Refused):
            return RepairReport(refused=found.why, checked=checked), None
        report = RepairReport(found.summary, checked=checked)
        return report, (await self._commit(found, shown, local, states) if apply else None)

    async def _holds_nothing(self) -> bool:
        """Whether no object proves an earlier manifest. Interrupted offloads before the first manifest all begin at the same
        offset."""
        ids = self._loop.ids
        if await _there(self._holds_manifest()) or await _any(self._store.list(ids.pages_prefix)):
            return False
        return len({parsed.base async for parsed, _ in self._segments()}) <= 1

    async def _holds_manifest(self) -> bool:
        await self._store.head(self._loop.ids.manifest_key)
        return True

    async def _lacking(self, log_start: int) -> Manifest | None:
        """The manifest in the store, if a listing lacks objects that it names, else None. TierUnavailable if it keeps
        changing."""
        for _ in range(_LOOKS):
            manifest = await self._loop.shown()
            if manifest is None or not await self._lacks_some(manifest, log_start):
                return None
            if await self._loop.shown() == manifest:
                return manifest
        raise TierUnavailable(f"the manifest of {self._loop.ids} keeps changing; retry")

    async def _lacks_some(self, manifest: Manifest, log_start: int) -> bool:
        ids, log_start = self._loop.ids, max(manifest.log_start, log_start)
        sizes = {info.key: info.size async for info in self._store.list(ids.segments_prefix)}
        if manifest.live_pages:
            sizes.update({info.key: info.size async for info in self._store.list(ids.pages_prefix)})
        newest = manifest.sidecar
        if newest is not None and sizes.get(newest.key) != sections_bytes(newest.sections):
            return True
        refs, segments = list(manifest.live_pages), list(manifest.segments)
        while refs or segments:
            if any(_is_missed(segment, log_start, sizes) for segment in segments):
                return True
            segments.clear()
            if refs:
                ref = refs.pop()
                if sizes.get(ref.key) != ref.length:
                    return True
                try:
                    page = await self._loop.page(ref)
                except (TierObjectMissing, TierCorrupt):
                    return True
                refs.extend(page.pages)
                segments.extend(page.segments)
        return False

    async def _commit(
        self, repair: RepairPlan, shown: Manifest | None, local: LocalEvidence, states: Mapping[str, SegmentState]
    ) -> Manifest:
        fillers = dict[str, tuple[RemoteSegment, ...]]()
        for each in repair.substitutions:
            parts = [await self._filler(repair.basis, each.lost, part, local.epochs, states) for part in each.parts]
            fillers[each.lost.key] = tuple(parts)

        state = await self._new_state(repair.basis, local.epochs) if repair.lacks_state else None

        def make(by: Author) -> ManifestChange:
            change = with_fillers(repaired(repair, shown, by), fillers, by)
            return change if state is None else replace(change, manifest=replace(change.manifest, sidecar=state))

        return await self._loop.commit_repair(shown, make)

    async def _new_state(self, manifest: Manifest, epochs: tuple[EpochEntry, ...]) -> NewestSidecar:
        """Writes a sidecar for the manifest's end, without producers. No manifest names the segment that this sidecar
        describes, so it is swept as an orphan."""
        built = await self._filler(manifest, None, OffsetRange(manifest.end - 1, manifest.end), epochs, {})
        return NewestSidecar(built.sidecar_key, built.sections, alone=True)

    async def _filler(
        self,
        manifest: Manifest,
        lost: RemoteSegment | None,
        part: Part,
        epochs: tuple[EpochEntry, ...],
        states: Mapping[str, SegmentState],
    ) -> RemoteSegment:
        """Offloads the segment that replaces a part of a lost segment."""
        with temporary() as directory:
            paths = Path(directory, "segment.log"), Path(directory, "segment.snapshot")
            if isinstance(part, RemoteSegment):
                state = states.get(part.key) or await stored_state(self._store, part)
                history = tuple(each for each in state.epochs if each.start_offset < part.end)
                producers, aborted, length = state.producer_state, state.aborted, part.length
                await download(self._store, part, paths[0])
            else:
                last_epoch = manifest.last_record_epoch if part.end == manifest.end else None
                data, history = empty_segment(part.base, part.end, epochs, last_epoch)
                producers, aborted, length = await self._producers(lost, part.end), (), len(data)
                await asyncio.to_thread(paths[0].write_bytes, data)
            await asyncio.to_thread(paths[1].write_bytes, producers)
            job = ExtendJob(
                path=str(paths[0]),
                position=0,
                length=length,
                base=part.base,
                end=part.end,
                leader_epoch=manifest.leader_epoch,
                last_record_epoch=history[-1].epoch,
                epochs=history,
                producer_snapshot=str(paths[1]),
                aborted=aborted,
            )
            built = await self._offloader.build(job)
            return (await self._offloader.offload(job, built, manifest)).segment

    async def _producers(self, lost: RemoteSegment | None, end: int) -> bytes:
        """The producer snapshot at offset `end`, if the lost segment ends there and its sidecar still exists. Otherwise an
        empty snapshot, because a snapshot must not include batches beyond its segment."""
        if lost is not None and end == lost.end and await _there(self._holds_sidecar(lost)):
            return sidecar.parse((await self._store.get(lost.sidecar_key)).data, lost.sidecar_key).producer_state
        return ProducerStateManager().state()

    async def _states(
        self, manifest: Manifest, lost: Iterable[RemoteSegment], local: LocalEvidence
    ) -> dict[str, SegmentState]:
        """The content of the lost sidecars of these intact segments, by the segment's key, as far as it can be recovered."""
        found = dict[str, SegmentState]()
        for segment in lost:
            around = await self._neighbours(manifest, segment)
            with temporary() as directory:
                path = Path(directory, "segment.log")
                await download(self._store, segment, path)
                state = await found_again(self._store, segment, path, around, local.epochs)
            if state is not None:
                found[segment.key] = state
        return found

    async def _neighbours(
        self, manifest: Manifest, segment: RemoteSegment
    ) -> tuple[RemoteSegment | None, RemoteSegment | None]:
        """The live segment that ends where `segment` begins, and the live segment that begins where `segment` ends."""

        def look(load_page: lookup.LoadPage) -> tuple[RemoteSegment | None, RemoteSegment | None]:
            before = after = None
            for each in lookup.live_segments(manifest, load_page, segment.base - 1):
                if each.base >= segment.end:
                    after = each if each.base == segment.end else None
                    break
                before = each if each.end == segment.base else before
            return before, after

        return await self._loop.look(look)

    async def _evidence(
        self, manifest: Manifest, shown: Manifest | None, local: LocalEvidence
    ) -> tuple[Evidence, dict[str, SegmentState], int]:
        missing: set[str] = set()
        lost: list[RemoteSegment] = []
        last_paged: RemoteSegment | None = None
        refs = list(reversed(manifest.live_pages))
        while refs:
            ref = refs.pop()
            if not await _there(self._holds_page(ref)):
                missing.add(ref.key)
                continue
            page = await self._loop.page(ref)
            if page.pages:
                refs.extend(reversed(page.pages))
                continue
            last_paged = page.segments[-1]
            await self._look_for(page.segments, missing, lost)
        await self._look_for(manifest.segments, missing, lost)
        unnamed = await self._unnamed(manifest)
        segments = len(manifest.segments) + sum(ref.count for ref in manifest.live_pages)
        earlier = await self._earlier([manifest] if shown is None else [manifest, shown], lost)
        checked = 2 * (segments + len(earlier)) + len(manifest.live_pages)
        states = dict[str, SegmentState]()
        if not missing.intersection(ref.key for ref in manifest.live_pages):
            states = await self._states(manifest, [each for each in lost if each.key not in missing], local)
        found = Evidence(
            missing,
            unnamed,
            last_paged,
            local.held,
            local.epochs,
            local.log_start,
            tuple(lost),
            tuple(earlier),
            frozenset(states),
            lacks_state=not await _there(self._holds_state(manifest)),
        )
        return found, states, checked

    async def _earlier(self, manifests: Sequence[Manifest], lost: Sequence[RemoteSegment]) -> list[RemoteSegment]:
        """The segments inside the offsets of a lost segment that these manifests name as live or removed, and that the store
        holds."""
        found = dict[str, RemoteSegment]()

        def note(segments: Iterable[RemoteSegment | None]) -> None:
            for each in segments:
                if each is not None and any(one.base <= each.base and each.end <= one.end for one in lost):
                    found[each.key] = each

        for manifest in manifests if lost else ():
            note((*manifest.segments, *(item.segment for item in manifest.removed)))
            async for page in self._pages_around(manifest, lost):
                note((*page.segments, *(item.segment for item in page.removed)))
        for each in lost:
            found.pop(each.key, None)
        missing, absent = set[str](), list[RemoteSegment]()
        await self._look_for(tuple(found.values()), missing, absent)
        return [each for each in found.values() if each not in absent]

    async def _pages_around(self, manifest: Manifest, lost: Sequence[RemoteSegment]) -> AsyncIterator[ManifestPage]:
        """The manifest's pages, of all levels, that overlap a lost segment. Missing and damaged pages are skipped."""
        refs = list(manifest.pages)
        while refs:
            ref = refs.pop()
            if not any(one.base < ref.end and ref.base < one.end for one in lost):
                continue
            try:
                page = await self._loop.page(ref)
            except (TierObjectMissing, TierCorrupt):
                continue
            yield page
            refs += page.pages

    async def _unnamed(self, manifest: Manifest) -> set[int]:
        """First offsets of segments in the store that may have been committed after `manifest`: they begin at or above its end,
        and the manifest names them nowhere."""
        known = set(manifest.keys())
        found: set[int] = set()
        async for parsed, key in self._segments():
            if parsed.base >= manifest.end and key not in known:
                found.add(parsed.base)
        return found

    async def _segments(self) -> AsyncIterator[tuple[keys.SegmentKey, str]]:
        """The partition's segments in the store, with their keys; other objects are ignored."""
        async for info in self._store.list(self._loop.ids.segments_prefix):
            parsed = keys.parse(info.key) if keys.is_key(info.key) else None
            if isinstance(parsed, keys.SegmentKey):
                yield parsed, info.key

    async def _look_for(
        self, segments: tuple[RemoteSegment, ...], missing: set[str], lost: list[RemoteSegment]
    ) -> None:
        """Adds missing keys to `missing`, and their segments to `lost`."""
        for some in _in_bunches(segments):
            verdicts = await asyncio.gather(*(self._lacks(segment) for segment in some))
            for segment, gone in zip(some, verdicts, strict=True):
                missing.update(gone)
                if gone:
                    lost.append(segment)

    async def _lacks(self, segment: RemoteSegment) -> list[str]:
        gone = [] if await _there(self._holds_segment(segment)) else [segment.key]
        return gone if await _there(self._holds_sidecar(segment)) else [*gone, segment.sidecar_key]

    async def _holds_state(self, manifest: Manifest) -> bool:
        """Whether the sidecar of the manifest's end is there. The sidecar's segment may be gone."""
        if manifest.sidecar is None:
            return True
        data = (await self._store.get(manifest.sidecar.key)).data
        parsed = sidecar.parse(data, manifest.sidecar.key)
        return parsed.end == manifest.end and sidecar.read_table(data) == manifest.sidecar.sections

    async def _holds_page(self, ref: PageRef) -> bool:
        """Reads the page from the store: a copy in memory does not prove that the store still has it."""
        data = (await self._store.get(ref.key)).data
        return (len(data), crc32c(data)) == (ref.length, ref.crc32c)

    async def _holds_segment(self, segment: RemoteSegment) -> bool:
        info = await self._store.head(segment.key)
        if info.size < segment.position + segment.length:
            return False
        if info.crc32c is not None and (segment.position, info.size) == (0, segment.length):
            return info.crc32c == segment.crc32c
        found, at = 0, segment.position
        while at < segment.position + segment.length:
            size = min(READ_BACK_BYTES, segment.position + segment.length - at)
            piece = (await self._store.get(segment.key, at, size)).data
            if not piece:
                return False
            found, at = crc32c(piece, found), at + len(piece)
        return found == segment.crc32c

    async def _holds_sidecar(self, segment: RemoteSegment) -> bool:
        data = (await self._store.get(segment.sidecar_key)).data
        if len(data) != sidecar_bytes(segment):
            return False
        parsed = sidecar.parse(data, segment.sidecar_key)
        named = (parsed.base, parsed.end, parsed.length, parsed.crc32c)
        return (
            named == (segment.base, segment.end, segment.length, segment.crc32c)
            and sidecar.read_table(data) == segment.sections
        )


def empty_segment(
    base: int, end: int, epochs: Sequence[EpochEntry], last_epoch: int | None = None
) -> tuple[bytes, tuple[EpochEntry, ...]]:
    """Batches without records over offsets [base, end), one for each leader epoch, and the epoch history up to `end`, which
    ends with `last_epoch` if given. Offsets before the history get its first epoch."""
    history = [each for each in epochs if each.start_offset < end] or [EpochEntry(max(last_epoch or 0, 0), base)]
    if last_epoch is not None and history[-1].epoch != last_epoch:
        history = [each for each in history if each.epoch < last_epoch]
        history.append(EpochEntry(last_epoch, max(base, history[-1].start_offset + 1) if history else base))
    bounds = [base, *(each.start_offset for each in history[1:] if each.start_offset > base), end]
    pieces = []
    for start, stop in itertools.pairwise(bounds):
        epoch = max((each for each in history if each.start_offset <= start), default=history[0]).epoch
        for at in range(start, stop, _MOST_OF_A_BATCH):
            pieces += [build_empty_batch(at, min(stop, at + _MOST_OF_A_BATCH), leader_epoch=epoch)]
    return b"".join(pieces), tuple(history)


def _is_missed(segment: RemoteSegment, log_start: int, sizes: Mapping[str, int]) -> bool:
    """Whether a listing (`sizes`: bytes by key) lacks part of a live segment above log start."""
    if segment.end <= log_start:
        return False
    short = sizes.get(segment.key, -1) < segment.position + segment.length
    return short or sizes.get(segment.sidecar_key) != sidecar_bytes(segment)


async def _any(listing: AsyncIterator[object]) -> bool:
    async for _ in listing:
        return True
    return False


async def _there(question: Awaitable[bool]) -> bool:
    try:
        return await question
    except (TierObjectMissing, TierCorrupt):
        return False


def _in_bunches(segments: tuple[RemoteSegment, ...]) -> Iterator[tuple[RemoteSegment, ...]]:
    for start in range(0, len(segments), CHECKS_AT_ONCE):
        yield segments[start : start + CHECKS_AT_ONCE]
