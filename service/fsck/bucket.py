"""Checks a whole bucket: every cluster, topic and partition, all objects that manifests name, and all others.

A cluster is listed once, in key order, and checked topic by topic, so memory holds only one topic's listing and one partition's
segments. A topic's keys are listed before its manifests are read, so an object that is committed in between counts as
referenced. If a manifest names an object that the listing lacks, the object is requested by its key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from service.fsck.findings import FindingKind, Report
from service.fsck.partition import PartitionCheck, committed_beyond
from service.metadata import frames
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import ClusterState
from storage_tiers.cold.manifest.documents import Fields, check_version
from storage_tiers.cold.manifest.model import Ids, Manifest, State
from storage_tiers.cold.manifest.topic_file import MAX_EARLIER, TopicState
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.offline.commit_cursor import read_cursor
from storage_tiers.cold.stores.port import BlockingObjectStore, ObjectInfo
from storage_tiers.errors import InvalidConfig, StoreRefused, TierCorrupt, TierObjectMissing

#: Called before each segment is read, with the numbers of segments that are done and that are begun.
Progress = Callable[[int, int], None]
#: Partition numbers have 32 bits.
_MAX_PARTITIONS = 1 << 31


@dataclass(frozen=True, slots=True)
class FsckScope:
    """`cluster_id` and `topic` restrict the check unless they are None. With `quick`, no segments are read. `grace_ms` is the
    age in milliseconds at which an orphan counts as damage."""

    cluster_id: str | None = None
    topic: str | None = None
    quick: bool = False
    grace_ms: int = 24 * 3600 * 1000


def check_bucket(
    store: BlockingObjectStore, scope: FsckScope, *, now_ms: int, progress: Progress = lambda done, known: None
) -> Report:
    """Checks the clusters and topics in `scope`. `now_ms` is in milliseconds since 1970. Raises LogError if the store cannot be
    read, and InvalidConfig if it has no such cluster or topic."""
    report = Report()
    bucket = Bucket(store)
    folders = bucket.folders()
    if scope.cluster_id is not None:
        if scope.cluster_id not in folders:
            raise InvalidConfig(
                f"the store holds no cluster {scope.cluster_id}; it holds {', '.join(folders) or 'none'}"
            )
        folders = [scope.cluster_id]
    for folder in folders:
        _Cluster(bucket, folder, scope, now_ms, report, progress).check()
    if scope.topic is not None and report.clusters and not report.topics:
        there = ", ".join(name for folder in folders for name in bucket.topic_names(folder))
        raise InvalidConfig(f"the store holds no topic {scope.topic!r}; it holds {there or 'none'}")
    return report


class _Cluster:
    """The check of one cluster's prefix. Its findings and counts go into `report`."""

    def __init__(
        self, bucket: Bucket, cluster: str, scope: FsckScope, now_ms: int, report: Report, progress: Progress
    ) -> None:
        self._bucket = bucket
        self.id = cluster
        self._scope = scope
        self._now_ms = now_ms
        self._report = report
        self._progress = progress
        self._state: ClusterState | None = None
        self._commits: dict[Ids, int] = {}

    def check(self) -> None:
        prefix = keys.cluster_prefix(self.id)
        if self._scope.topic is not None:
            prefix = keys.topic_prefix(self.id, self._scope.topic)
        groups = itertools.groupby(self._bucket.store.list(prefix), lambda info: self._topic_of(info.key))
        self._read_cluster()
        elsewhere: dict[str, ObjectInfo] = {}
        for topic, infos in groups:
            listed = {info.key: info for info in infos}
            self._report.objects += len(listed)
            if topic is None:
                elsewhere.update(listed)
            else:
                self._report.topics += 1
                self._check_unknown(listed, _Topic(self, topic, listed).check())
        known = {key for key in elsewhere if self._check_elsewhere(key)}
        if self._state is not None or self._report.topics:
            self._check_unknown(elsewhere, known)
            self._report.clusters += 1
        self._check_uploads(prefix)

    @property
    def bucket(self) -> Bucket:
        return self._bucket

    @property
    def quick(self) -> bool:
        return self._scope.quick

    @property
    def report(self) -> Report:
        return self._report

    def _topic_of(self, key: str) -> str | None:
        """The topic's name if the key is below `topics/`, otherwise None."""
        rest = key.removeprefix(keys.cluster_prefix(self.id))
        parts = rest.split("/", 2)
        return parts[1] if len(parts) == 3 and parts[0] == "topics" else None

    def _read_cluster(self) -> None:
        key = keys.cluster_key(self.id)
        try:
            self._state = state = self._bucket.cluster_state(self.id)
        except TierObjectMissing:
            if self._bucket.topic_names(self.id):
                self._report.add(
                    FindingKind.MISSING, key, "the cluster has topics but no cluster.json, so no reader finds them"
                )
            return
        except (TierCorrupt, StoreRefused) as error:
            self._report.add(FindingKind.BAD_FILE, key, str(error))
            return
        holder = state.holder
        if state.incarnation < 1 or holder.node_id < 0 or not holder.directory_id or not holder.start_id:
            self._report.add(FindingKind.BAD_FILE, key, f"incarnation {state.incarnation} of {holder} was never begun")

    def _check_elsewhere(self, key: str) -> bool:
        """Whether a key outside `topics/` belongs to the layout. If so, checks the object's content."""
        try:
            parsed = keys.parse(key)
        except ValueError:
            return False
        if isinstance(parsed, keys.CursorKey):
            self._check_cursor(key, parsed)
        elif isinstance(parsed, keys.VerdictKey | keys.MissedKey):
            self._check_record(key, parsed)
        elif isinstance(parsed, keys.SnapshotKey):
            self._check_snapshot(key, parsed)
        return True

    def _check_snapshot(self, key: str, parsed: keys.SnapshotKey) -> None:
        """Checks that the object is one whole frame of the metadata log, with the entry that the key names."""
        self.check_incarnation(key, parsed.incarnation)
        try:
            data = self._bucket.store.get(key).data
        except TierObjectMissing:
            return  # meanwhile a newer snapshot was written, and the oldest snapshot was removed
        self._report.bytes_read += len(data)
        frame = frames.decode(data)
        if frame is None or frame.index != parsed.index or len(frames.encode(frame)) != len(data):
            fault = f"it is not one whole frame of entry {parsed.index} of the metadata log"
            self._report.add(FindingKind.BAD_FILE, key, fault)

    def _check_record(self, key: str, parsed: keys.VerdictKey | keys.MissedKey) -> None:
        """Checks a verdict or missed range, which a commit reader writes once: it must be readable and belong to the partition
        in its key."""
        try:
            fields = Fields.parse(self._bucket.store.get(key).data, key)
            check_version(fields)
            of = fields.text("reader"), fields.text("topic_id"), fields.natural("partition")
            if of != (parsed.reader, str(parsed.topic_id), parsed.partition):
                raise fields.bad(f"it belongs to reader {of[0]}, partition {of[2]} of topic id {of[1]}")
        except (TierCorrupt, StoreRefused) as error:
            self._report.add(FindingKind.BAD_FILE, key, str(error))
        except TierObjectMissing:
            return  # an operator may delete a reader's files, and the reader then starts over

    def _check_cursor(self, key: str, parsed: keys.CursorKey) -> None:
        ids = Ids(parsed.cluster, parsed.topic, parsed.topic_id, parsed.partition)
        try:
            cursor = read_cursor(self._bucket.store, ids, parsed.reader)
        except (TierCorrupt, StoreRefused) as error:
            self._report.add(FindingKind.BAD_FILE, key, str(error))
            return
        newest = self._commits.get(ids, cursor.commit)
        if cursor.commit > newest and cursor.commit > (newest := self._newest_commit(ids)):
            fault = f"it is at commit {cursor.commit}, but the manifest's newest commit is {newest}"
            self._report.add(FindingKind.ABOVE_OWNER, key, fault)

    def _newest_commit(self, ids: Ids) -> int:
        manifest = self._bucket.manifest(ids, sound=False)
        return 0 if manifest is None else manifest.commit

    def on_segment(self) -> None:
        self._progress(self._report.segments - 1, self._report.segments)

    def check_incarnation(self, key: str, incarnation: int) -> None:
        if self._state is not None and incarnation > self._state.incarnation:
            self._read_cluster()  # a node may have started since the last read
        if self._state is not None and incarnation > self._state.incarnation:
            fault = f"its incarnation is {incarnation}, but the cluster's is {self._state.incarnation}"
            self._report.add(FindingKind.ABOVE_OWNER, key, fault)

    def checked(self, manifest: Manifest) -> None:
        self._commits[manifest.ids] = manifest.commit
        self.check_incarnation(manifest.ids.manifest_key, manifest.incarnation)

    def is_old(self, info: ObjectInfo) -> bool:
        return self._now_ms - info.modified_ms >= self._scope.grace_ms

    # --- unreferenced objects -----------------------------------------------------------------------------------------
    def _check_unknown(self, listed: dict[str, ObjectInfo], known: set[str]) -> None:
        for key, info in listed.items():
            if key not in known:
                kind = FindingKind.ORPHAN if self.is_old(info) else FindingKind.YOUNG_ORPHAN
                age_s = (self._now_ms - info.modified_ms) // 1000
                self._report.add(kind, key, f"{info.size} bytes, {age_s} s old, in no manifest")

    def _check_uploads(self, prefix: str) -> None:
        for upload in self._bucket.store.unfinished_uploads(prefix):
            age_ms = self._now_ms - upload.started_ms
            kind = FindingKind.UNFINISHED_UPLOAD if age_ms >= self._scope.grace_ms else FindingKind.YOUNG_UPLOAD
            self._report.add(kind, upload.key, f"upload {upload.upload_id} began {age_ms // 1000} s ago")


class _Topic:
    """All topic ids of one name. `listed` are the objects below that name."""

    def __init__(self, cluster: _Cluster, name: str, listed: dict[str, ObjectInfo]) -> None:
        self._cluster = cluster
        self._name = name
        self._listed = listed
        self._report = cluster.report
        self._known: set[str] = set()
        self._state: TopicState | None = None
        self._readable = True

    def check(self) -> set[str]:
        """Checks the topic. Returns the keys that belong to it."""
        self._read_state()
        found: dict[Ids, keys.ManifestKey] = {}
        bare: dict[Ids, list[str]] = {}
        for key in sorted(self._listed):
            try:
                parsed = keys.parse(key)
            except ValueError:
                continue
            if isinstance(parsed, keys.ManifestKey):
                found[Ids(parsed.cluster, parsed.topic, parsed.topic_id, parsed.partition)] = parsed
            elif isinstance(parsed, keys.SegmentKey | keys.SidecarKey | keys.PageKey):
                ids = Ids(parsed.cluster, parsed.topic, parsed.topic_id, parsed.partition)
                bare.setdefault(ids, []).append(key)
            else:
                self._known.add(key)
        for ids in found:
            self._check_partition(ids)
        for ids, named in bare.items():
            if ids not in found:
                self._check_bare(ids, named)
        return self._known

    def _read_state(self) -> None:
        key = keys.topic_file_key(self._cluster.id, self._name)
        try:
            self._state = state = self._cluster.bucket.topic_state(self._cluster.id, self._name)
        except (TierCorrupt, StoreRefused) as error:
            self._report.add(FindingKind.BAD_FILE, key, str(error))
            self._readable = False
            return
        except ValueError:
            return  # the folder's name cannot be a topic's, so all its keys are unknown
        if state is None:
            if any(key.endswith(".json") for key in self._listed):
                fault = "the topic has manifests but no topic.json, so no reader finds it"
                self._report.add(FindingKind.MISSING, key, fault)
            return
        self._cluster.check_incarnation(key, state.incarnation)
        ids = [state.topic_id, *state.earlier]
        if len(set(ids)) != len(ids) or len(state.earlier) > MAX_EARLIER:
            self._report.add(
                FindingKind.BAD_FILE, key, f"its ids {', '.join(map(str, ids))} are too many, or one appears twice"
            )
        if not 1 <= state.partitions < _MAX_PARTITIONS or state.revision < 0 or state.incarnation < 0:
            fault = f"{state.partitions} partitions, revision {state.revision}, incarnation {state.incarnation}"
            self._report.add(FindingKind.BAD_FILE, key, f"a number is outside its bounds: {fault}")

    def _check_partition(self, ids: Ids) -> None:
        self._report.partitions += 1
        self._check_belongs(ids)
        check = PartitionCheck(
            self._cluster.bucket,
            ids,
            self._listed,
            self._report,
            self._cluster.quick,
            self._state is not None and "compact" in self._state.configs.get("cleanup.policy", ""),
            self._known,
            self._cluster.on_segment,
        )
        manifest = check.check()
        if manifest is None:
            return
        self._cluster.checked(manifest)
        if manifest.state is State.DELETED and self._is_live(ids) and self._is_live_still(ids):
            fault = (
                f"topic {ids.topic} is live under this topic id, but the manifest of its partition says it was deleted"
            )
            self._report.add(FindingKind.WRONG_TOPIC, ids.manifest_key, fault)

    def _is_live(self, ids: Ids) -> bool:
        return self._state is not None and self._state.topic_id == ids.topic_id and self._state.state is State.LIVE

    def _is_live_still(self, ids: Ids) -> bool:
        """Reads `topic.json` again. A deletion marks this file before any manifest, so the file shows a deletion that began
        after the first read."""
        state = self._cluster.bucket.topic_state(ids.cluster_id, ids.topic)
        return state is not None and state.topic_id == ids.topic_id and state.state is State.LIVE

    def _check_belongs(self, ids: Ids) -> None:
        state = self._state
        if state is None:
            return
        key = keys.topic_file_key(state.cluster_id, state.topic)
        if state.topic_id == ids.topic_id:
            if ids.partition >= state.partitions:
                fault = f"it says {state.partitions} partitions, but {ids.manifest_key} exists"
                self._report.add(FindingKind.WRONG_TOPIC, key, fault)
        elif ids.topic_id not in state.earlier and len(state.earlier) < MAX_EARLIER:
            self._report.add(
                FindingKind.WRONG_TOPIC, key, f"it does not name the topic id {ids.topic_id}, whose manifests exist"
            )

    def _check_bare(self, ids: Ids, named: list[str]) -> None:
        """Checks the objects of a partition without a manifest: its first offload is in progress, or its manifest is lost."""
        if not self._is_live(ids) and self._readable and self._state is not None:
            return  # a deletion creates missing manifests, so these objects are from a fenced writer
        pair = committed_beyond(self._cluster.bucket, ids, self._listed, self._known, 0)
        if pair is None and not any(self._cluster.is_old(self._listed[key]) for key in named):
            return
        self._known.update(named)
        self._report.add(
            FindingKind.NO_MANIFEST,
            ids.manifest_key,
            f"{ids} has {len(named)} objects, from {named[0]} on, but the manifest that names them is missing",
        )
