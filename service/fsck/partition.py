"""Checks one partition of a bucket: its manifest and pages, every segment that they name, and unreferenced objects.

Live segments are read in offset order, so that the epochs, producers and transactions in a sidecar can be compared with all
earlier batches. Removed segments are also read, because a pin or a reader of an earlier commit still needs them. A removed
segment without a pin may be swept during the check, which is not a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from service.fsck import manifest_check
from service.fsck.findings import FindingKind, Report
from service.fsck.history import History
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.lineage import MAX_LOOKED_INTO, Span, follow_one_another
from storage_tiers.cold.manifest.lookup import state_at
from storage_tiers.cold.manifest.model import (
    Ids,
    Manifest,
    ManifestPage,
    PageKind,
    PageRef,
    RemoteSegment,
    Removed,
    State,
)
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.segment_check import Fault, check_segment, sidecar_bytes
from storage_tiers.cold.stores.port import ObjectInfo
from storage_tiers.errors import InvalidRequest, StoreRefused, TierCorrupt, TierObjectMissing
from storage_tiers.records.batch import BatchHeader

Listed = Mapping[str, ObjectInfo]


@dataclass
class PartitionCheck:
    """`listed` are the objects below the topic's name. They were listed before its manifests were read. With `quick`, no
    segments are read. `is_compacted` comes from the topic's own configs. `known` collects the keys that belong to the
    partition."""

    bucket: Bucket
    ids: Ids
    listed: Listed
    report: Report
    quick: bool
    is_compacted: bool = False
    known: set[str] = field(default_factory=set)
    #: Called before each segment is read.
    on_segment: Callable[[], None] = lambda: None

    def check(self) -> Manifest | None:
        """Checks everything and reports the findings. Returns the manifest, or None if it cannot be read. Raises LogError if
        the store cannot be read."""
        key = self.ids.manifest_key
        self.known.add(key)
        try:
            manifest = self.bucket.manifest(self.ids, sound=False)
            if manifest is None:
                raise TierObjectMissing(f"the manifest of {self.ids} was deleted while it was read")
        except (TierCorrupt, TierObjectMissing, StoreRefused) as error:
            self._add(FindingKind.BAD_MANIFEST, key, str(error))
            self._know_everything()  # without a manifest, no object counts as unreferenced
            return None
        for kind, fault in manifest_check.manifest_faults(manifest):
            self._add(kind, key, fault)
        if manifest.state is State.DELETED:
            self._know_everything()  # the sweeper deletes its objects after the deletion's grace period
            return manifest
        self.known.update(manifest.keys())
        live, removed = self._segments(manifest)
        self._check_live(manifest, live)
        self._check_names(manifest, live, removed)
        self._check_sizes(live, removed)
        self._check_removed(manifest, removed)
        self._check_sidecar(manifest, live, removed)
        self._check_pins(manifest, live, removed)
        self._check_went_back(manifest)
        return manifest

    def _add(self, kind: FindingKind, key: str, detail: str) -> None:
        self.report.add(kind, key, detail)

    def _know_everything(self) -> None:
        prefixes = self.ids.segments_prefix, self.ids.pages_prefix
        self.known.update(key for key in self.listed if key.startswith(prefixes))

    # --- manifest -----------------------------------------------------------------------------------------------------
    def _segments(self, manifest: Manifest) -> tuple[list[RemoteSegment], list[Removed]]:
        """All live and all removed segments, including those in pages."""
        live: list[RemoteSegment] = []
        removed: list[Removed] = []
        refs = list(reversed(manifest.pages))
        while refs:
            ref = refs.pop()
            try:
                page = self.bucket.page(self.ids, ref)
            except TierObjectMissing:
                self._add(FindingKind.MISSING, ref.key, f"the manifest of {self.ids} names this page")
                continue
            except (TierCorrupt, StoreRefused) as error:
                self._add(FindingKind.BAD_MANIFEST, ref.key, str(error))
                continue
            for kind, fault in manifest_check.page_faults(manifest, ref, page):
                self._add(kind, ref.key, fault)
            refs.extend(reversed(page.pages))
            self.known.update(child.key for child in page.pages)
            (live if ref.kind is PageKind.LIVE else []).extend(page.segments)
            removed.extend(page.removed)
            self.known.update(_keys_of(page.segments, page.removed))
        return [*live, *manifest.segments], [*removed, *manifest.removed]

    def _check_names(self, manifest: Manifest, live: list[RemoteSegment], removed: list[Removed]) -> None:
        named = {key for segment in live for key in (segment.key, segment.sidecar_key)} | {
            ref.key for ref in manifest.pages
        }
        gone = {key for item in removed for key in item.keys} | {each.key for each in manifest.tombstoned}
        for key in sorted(named & gone):
            self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, f"{key} is live and removed at once")
        sidecars = [segment.sidecar_key for segment in live] + [ref.key for ref in manifest.pages]
        lists = [key for item in removed for key in item.keys[-1:]] + [each.key for each in manifest.tombstoned]
        for key in manifest_check.twice_named([*sidecars, *lists]):
            self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, f"{key} is named twice")

    def _check_live(self, manifest: Manifest, live: list[RemoteSegment]) -> None:
        for kind, fault in manifest_check.tiling_faults(manifest, live):
            if manifest.live_pages:  # without pages, the manifest's own check has reported it
                self._add(kind, manifest.ids.manifest_key, fault)
        epoch = self._check_segments(manifest, live, lambda segment: True)
        if epoch is not None and epoch != manifest.last_record_epoch:
            fault = f"last_record_epoch is {manifest.last_record_epoch}, but the last batch has leader epoch {epoch}"
            self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, fault)

    def _check_removed(self, manifest: Manifest, removed: list[Removed]) -> None:
        pinned = {
            item.segment.key
            for item in removed
            if item.segment is not None and any(pin.holds(item) for pin in manifest.pins)
        }
        segments = [
            item.segment
            for item in removed
            if item.segment is not None and (item.segment.key in pinned or all(key in self.listed for key in item.keys))
        ]
        self._check_segments(
            manifest, sorted(segments, key=lambda segment: segment.base), lambda segment: segment.key in pinned
        )

    def _check_pins(self, manifest: Manifest, live: list[RemoteSegment], removed: list[Removed]) -> None:
        whole = Manifest(
            manifest.ids,
            commit=manifest.commit,
            swept=0,
            pins=manifest.pins,
            segments=tuple(live),
            removed=tuple(removed),
        )
        changes = {segment.added.commit for segment in live} | {
            item.at.commit for item in removed if item.segment is not None
        }
        changes |= {item.segment.added.commit for item in removed if item.segment is not None}
        for pin in manifest.pins:
            try:
                then = state_at(whole, _no_page, pin.commit)
            except InvalidRequest as error:
                self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, str(error))
                continue
            for fault in manifest_check.pin_faults(pin, then, changes):
                self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, fault)

    def _check_sidecar(self, manifest: Manifest, live: list[RemoteSegment], removed: list[Removed]) -> None:
        """Checks the newest sidecar, from which a rebuilt log takes its epochs and producers."""
        newest = manifest.sidecar
        if newest is None:
            return
        segments = [*live, *(item.segment for item in removed if item.segment is not None)]
        named = any(segment.sidecar_key == newest.key for segment in segments)
        for fault in manifest_check.sidecar_faults(manifest, live[-1] if live else None, named):
            self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, fault)
        if named and live:
            return
        try:
            data = self.bucket.store.get(newest.key).data
            self.report.bytes_read += len(data)
            parsed = sidecar.parse(data, newest.key)
            table = sidecar.read_table(data, newest.key)
        except TierObjectMissing as error:
            self._add(FindingKind.MISSING, newest.key, f"it is the newest sidecar of {self.ids}: {error}")
            return
        except (TierCorrupt, StoreRefused) as error:
            self._add(FindingKind.BAD_SIDECAR, newest.key, str(error))
            return
        if parsed.end != manifest.end or table != newest.sections:
            fault = f"it describes offsets [{parsed.base}, {parsed.end}), but the manifest ends at {manifest.end}"
            self._add(FindingKind.FOREIGN_SIDECAR, newest.key, fault)
        elif not parsed.epochs or parsed.epochs[-1].epoch != manifest.last_record_epoch:
            fault = f"last_record_epoch is {manifest.last_record_epoch}, but the newest sidecar has {parsed.epochs}"
            self._add(FindingKind.BAD_MANIFEST, manifest.ids.manifest_key, fault)

    # --- segments -------------------------------------------------------------------------------------------------------
    def _check_segments(
        self, manifest: Manifest, segments: Iterable[RemoteSegment], needed: Callable[[RemoteSegment], bool]
    ) -> int | None:
        """Checks the segments. A missing object is a finding only if its segment is `needed`. Returns the leader epoch of the
        last batch before the manifest's end; None if that batch was not read."""
        history: History | None = None
        following = -1
        newest: int | None = None
        for segment in segments:
            self.report.segments += 1
            if not self._is_there(segment, needed(segment)) or self.quick:
                history = None
                continue
            if history is None or segment.base != following or not segment.records:
                if history is not None:
                    history.close()
                history = self._history(manifest, segment)
            self.on_segment()
            epochs: list[int] = []
            whole = self._check_segment(manifest, segment, history, epochs, needed(segment))
            following = segment.end
            if not whole:
                history = None
            elif segment.end == manifest.end:
                newest = epochs[-1]
        if history is not None:
            history.close()
        return newest

    def _history(self, manifest: Manifest, segment: RemoteSegment) -> History:
        # The former records of a segment without records are unknown, because they were compacted, or lost and given up.
        base = segment.base if segment.records else segment.end
        return History(
            base,
            manifest.log_start,
            lambda key, fault: self._add(FindingKind.WRONG_SIDECAR, key, fault),
            is_compacted=self.is_compacted,
        )

    def _check_segment(
        self, manifest: Manifest, segment: RemoteSegment, history: History, epochs: list[int], needed: bool
    ) -> bool:
        """Checks one segment. Returns whether all its batches were read. `epochs` then holds the last batch's leader epoch."""

        def observe(batch: memoryview, header: BatchHeader) -> None:
            history.add(header, batch)
            epochs[:] = [header.leader_epoch]

        verdict = check_segment(self.bucket.store, segment, payloads=True, observe=observe)
        self.report.bytes_read += verdict.bytes_read
        for finding in verdict.findings:
            if needed or finding.fault is not Fault.MISSING:
                self._add(FindingKind[finding.fault.name], finding.key, finding.detail)
        if verdict.whole:
            history.finish(segment, verdict.sidecar)
            if epochs[-1] > manifest.leader_epoch:
                fault = f"its last batch has leader epoch {epochs[-1]}, but the manifest has {manifest.leader_epoch}"
                self._add(FindingKind.ABOVE_OWNER, segment.key, fault)
        return verdict.whole

    def _is_there(self, segment: RemoteSegment, needed: bool) -> bool:
        """Whether both objects exist and are long enough, according to the listing. If not, they are not read."""
        for key, least in (
            (segment.key, segment.position + segment.length),
            (segment.sidecar_key, sidecar_bytes(segment)),
        ):
            size = self._size(key)
            if size is None:
                if needed:
                    self._add(
                        FindingKind.MISSING, key, f"the manifest names it for offsets [{segment.base}, {segment.end})"
                    )
                return False
            if size < least:
                detail = f"it has {size} bytes, but [{segment.base}, {segment.end}) needs {least}"
                self._add(FindingKind.TRUNCATED, key, detail)
                return False
        return True

    def _size(self, key: str) -> int | None:
        """The object's size in bytes as listed, or its current size if it was offloaded after the listing; None if it is
        missing."""
        info = self.listed.get(key)
        if info is None:
            try:
                info = self.bucket.store.head(key)
            except TierObjectMissing:
                return None
        return info.size

    def _check_sizes(self, live: list[RemoteSegment], removed: list[Removed]) -> None:
        """Reports objects with bytes that no segment names. `_is_there` reports objects that are too short."""
        ends: dict[str, int] = {}
        for segment in [*live, *(item.segment for item in removed if item.segment is not None)]:
            for key, end in (
                (segment.key, segment.position + segment.length),
                (segment.sidecar_key, sidecar_bytes(segment)),
            ):
                ends[key] = max(ends.get(key, 0), end)
        for key, end in ends.items():
            info = self.listed.get(key)
            if info is not None and info.size > end:
                self._add(FindingKind.TRUNCATED, key, f"it has {info.size} bytes, but its manifest names only {end}")

    # --- unreferenced objects -----------------------------------------------------------------------------------------
    def _check_went_back(self, manifest: Manifest) -> None:
        pair = committed_beyond(self.bucket, self.ids, self.listed, self.known, manifest.end)
        if pair is not None:
            self._add(
                FindingKind.WENT_BACK,
                manifest.ids.manifest_key,
                f"it ends at offset {manifest.end} with commit {manifest.commit}, but {pair[0]} and {pair[1]} were written "
                "after it, the second after the first: an older manifest has replaced the newest one. Delete none of its "
                "objects",
            )


def committed_beyond(bucket: Bucket, ids: Ids, listed: Listed, known: set[str], end: int) -> tuple[str, str] | None:
    """Two unreferenced segments at or after `end`, the second of which proves that the first was committed
    (`lineage.follow_one_another`); None if there are none."""
    beyond: list[Span] = []
    for key in sorted(listed):
        if key in known or not key.startswith(ids.segments_prefix) or len(beyond) == MAX_LOOKED_INTO:
            continue
        try:
            parsed = keys.parse(key)
            if not isinstance(parsed, keys.SidecarKey) or parsed.base < end:
                continue
            found = sidecar.read_head(bucket.store.get(key, 0, sidecar.HEAD_BYTES).data, key)
        except (ValueError, TierCorrupt, StoreRefused, TierObjectMissing):
            continue
        beyond.append(Span(found.base, found.end, key))
    return follow_one_another(beyond)


def _keys_of(segments: Iterable[RemoteSegment], removed: Iterable[Removed]) -> Iterable[str]:
    for segment in segments:
        yield segment.key
        yield segment.sidecar_key
    for item in removed:
        yield from item.keys


def _no_page(ref: PageRef) -> ManifestPage:
    raise AssertionError(f"the segments of {ref.key} are already in memory")
