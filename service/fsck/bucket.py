"""The whole bucket: every manifest, everything that manifests name, and everything that they do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from service.fsck.findings import Kind, Report
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import Entry, Ids, Page, PageKind, Root, State, broken
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.segments.range_check import check_range, sidecar_bytes
from storage_tiers.cold.stores.port import BlockingObjectStore, ObjectInfo
from storage_tiers.errors import InvalidConfig, LogError, TierCorrupt, TierObjectMissing, TierUnavailable

#: Called with (ranges done, ranges known) as the check goes on.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """`quick` looks at listings and manifests only; `grace_ms` is how old an orphan must be to count as damage."""

    cluster_id: str | None = None
    topic: str | None = None
    quick: bool = False
    grace_ms: int = 24 * 3600 * 1000


def check_bucket(
    store: BlockingObjectStore, scope: Scope, *, now_ms: int, progress: Progress = lambda done, known: None
) -> Report:
    """Raises LogError if the store cannot be looked at."""
    report = Report()
    clusters = store.list_folders("")
    if scope.cluster_id is not None:
        if scope.cluster_id not in clusters:
            raise InvalidConfig(
                f"the store holds no cluster {scope.cluster_id}; it holds {', '.join(clusters) or 'none'}"
            )
        clusters = [scope.cluster_id]
    for cluster in clusters:
        report.clusters += 1
        _Cluster(store, cluster, scope, now_ms, report).check(progress)
    return report


class _Cluster:
    def __init__(self, store: BlockingObjectStore, cluster: str, scope: Scope, now_ms: int, report: Report) -> None:
        self._store = store
        self._bucket = Bucket(store)
        self._cluster = cluster
        self._scope = scope
        self._now_ms = now_ms
        self._report = report
        self._prefix = keys.topic_prefix(cluster, scope.topic) if scope.topic else keys.cluster_prefix(cluster)

    def check(self, progress: Progress) -> None:
        # Listed before any manifest is read: what is committed in between is then seen as referenced, not as missing.
        listed = {info.key: info for info in self._store.list(self._prefix)}
        self._report.objects += len(listed)
        known: set[str] = set()
        entries: list[Entry] = []
        for key in sorted(listed):
            entries += self._check_document(key, listed, known)
        for done, entry in enumerate(entries):
            progress(done, len(entries))
            self._report.ranges += 1
            if self._is_listed(entry, listed) and not self._scope.quick:
                self._check_range(entry)
        progress(len(entries), len(entries))
        self._check_unknown(listed, known)
        self._check_uploads()

    # --- documents ----------------------------------------------------------------------------------------------------
    def _check_document(self, key: str, listed: dict[str, ObjectInfo], known: set[str]) -> list[Entry]:
        """The live entries of a manifest; none for other keys. Adds to `known` every key that is accounted for."""
        try:
            parsed = keys.parse(key)
        except ValueError:
            return []
        if isinstance(parsed, keys.ManifestKey):
            known.add(key)
            return self._check_manifest(key, parsed, listed, known)
        if isinstance(parsed, keys.ClusterFile | keys.TopicFile):
            known.add(key)
            self._check_file(key, parsed)
        elif isinstance(parsed, keys.CursorKey | keys.VerdictKey | keys.MissedKey):
            known.add(key)
        return []

    def _check_file(self, key: str, parsed: keys.ClusterFile | keys.TopicFile) -> None:
        try:
            if isinstance(parsed, keys.ClusterFile):
                self._bucket.cluster_state(parsed.cluster)
            else:
                self._bucket.topic_state(parsed.cluster, parsed.topic)
        except TierUnavailable:
            raise
        except LogError as error:
            self._report.add(Kind.BAD_FILE, key, str(error))

    def _check_manifest(
        self, key: str, parsed: keys.ManifestKey, listed: dict[str, ObjectInfo], known: set[str]
    ) -> list[Entry]:
        self._report.partitions += 1
        ids = Ids(parsed.cluster, parsed.topic, parsed.topic_id, parsed.partition)
        try:
            root = self._bucket.manifest(ids, sound=False)
            if root is None:
                raise TierObjectMissing(f"the manifest of {ids} was deleted while it was looked at")
        except (TierCorrupt, TierObjectMissing) as error:
            self._report.add(Kind.BAD_MANIFEST, key, str(error))
            # What it names is unknown, and so is what it does not name.
            known.update(other for other in listed if other.startswith((ids.segments_prefix, ids.pages_prefix)))
            return []
        known.update(root.keys())
        fault = broken(root)
        if fault is not None:
            self._report.add(_kind_of(fault), key, fault)
        if root.state is State.DELETED:
            # Its objects wait for the grace of the deletion, which the sweeper knows.
            known.update(other for other in listed if other.startswith((ids.segments_prefix, ids.pages_prefix)))
            return []
        entries = list(self._paged_entries(root, listed, known))
        entries += root.entries
        self._check_tiling(key, root, entries)
        return [entry for entry in entries if entry.end > root.log_start]

    def _paged_entries(self, root: Root, listed: dict[str, ObjectInfo], known: set[str]) -> Iterator[Entry]:
        for ref in root.pages:
            if ref.key not in listed:
                self._report.add(Kind.MISSING, ref.key, f"the manifest of {root.ids} names this page")
                continue
            try:
                page = self._bucket.page(root.ids, ref)
            except TierObjectMissing as error:
                self._report.add(Kind.MISSING, ref.key, str(error))
                continue
            except TierCorrupt as error:
                self._report.add(Kind.BAD_MANIFEST, ref.key, str(error))
                continue
            known.update(_named(page))
            if page.kind is PageKind.LIVE:
                yield from page.entries

    def _check_tiling(self, key: str, root: Root, entries: list[Entry]) -> None:
        """Inside pages, which the root's own check sees only from outside."""
        if not root.live_pages:
            return
        for before, entry in itertools.pairwise(entries):
            if entry.base < before.end:
                self._report.add(Kind.OVERLAP, key, f"[{before.base}, {before.end}) and [{entry.base}, {entry.end})")
            elif entry.base != before.end and entry.gap_from != before.end:
                self._report.add(Kind.HOLE, key, f"offsets [{before.end}, {entry.base}) are in no live range")

    # --- ranges -------------------------------------------------------------------------------------------------------
    def _is_listed(self, entry: Entry, listed: dict[str, ObjectInfo]) -> bool:
        """By the listing alone: are both objects there, and long enough? False if reading them makes no sense."""
        sidecar_length = sidecar_bytes(entry)
        for key, needed in ((entry.key, entry.position + entry.length), (entry.sidecar_key, sidecar_length)):
            info = listed.get(key)
            if info is None:
                self._report.add(Kind.MISSING, key, f"the manifest names it for offsets [{entry.base}, {entry.end})")
                return False
            if info.size < needed or (key == entry.sidecar_key and info.size != needed):
                detail = f"it has {info.size} bytes, {needed} belong to [{entry.base}, {entry.end})"
                self._report.add(Kind.TRUNCATED, key, detail)
                return False
        return True

    def _check_range(self, entry: Entry) -> None:
        verdict = check_range(self._store, entry)
        self._report.bytes_read += verdict.bytes_read
        for finding in verdict.findings:
            self._report.add(Kind[finding.fault.name], finding.key, finding.detail)

    # --- what no manifest names ---------------------------------------------------------------------------------------
    def _check_unknown(self, listed: dict[str, ObjectInfo], known: set[str]) -> None:
        for key, info in listed.items():
            if key in known:
                continue
            age_ms = self._now_ms - info.modified_ms
            kind = Kind.ORPHAN if age_ms >= self._scope.grace_ms else Kind.YOUNG_ORPHAN
            self._report.add(kind, key, f"{info.size} bytes, {age_ms // 1000} s old, in no manifest")

    def _check_uploads(self) -> None:
        for upload in self._store.unfinished_uploads(self._prefix):
            age_ms = self._now_ms - upload.started_ms
            kind = Kind.UNFINISHED_UPLOAD if age_ms >= self._scope.grace_ms else Kind.YOUNG_UPLOAD
            self._report.add(kind, upload.key, f"upload {upload.upload_id} was begun {age_ms // 1000} s ago")


def _kind_of(fault: str) -> Kind:
    if "overlap" in fault:
        return Kind.OVERLAP
    return Kind.HOLE if "in no live range" in fault else Kind.BAD_MANIFEST


def _named(page: Page) -> Iterator[str]:
    for entry in page.entries:
        yield entry.key
        yield entry.sidecar_key
    for item in page.removed:
        yield from item.keys
