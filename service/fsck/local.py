"""Checks a data directory against the bucket. Where both contain an offset, their batches must be equal, except for records
that compaction has removed from one of them. If they differ, the tier wins (I9)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from service.fsck.findings import FindingKind, Report
from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.lookup import LoadPage, live_segments
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestPage, PageRef, RemoteSegment, State
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME, read_manifest
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.compaction.clean_point import was_bucket_cleaned
from storage_tiers.compaction.reduction import are_of_one_batch
from storage_tiers.errors import CorruptRecord, InvalidConfig, LogError, StoreRefused, TierCorrupt, TierObjectMissing
from storage_tiers.hot import layout
from storage_tiers.hot.data_dir import META_PROPERTIES, read_topic_id
from storage_tiers.records.batch import BatchHeader, headers


def check_local(store: BlockingObjectStore, data_dir: str, report: Report) -> None:
    """Compares all partitions in a node's data directory with the bucket. The node may be running. Raises InvalidConfig if
    `data_dir` is not a data directory, and StorageError if a partition's topic id cannot be read."""
    bucket = Bucket(store)
    cluster_id = _cluster_id(data_dir)
    for name in sorted(os.listdir(data_dir)):
        partition = layout.parse_partition(name)
        directory = os.path.join(data_dir, name)
        topic_id = read_topic_id(directory) if partition is not None and os.path.isdir(directory) else None
        if partition is None or topic_id is None:
            continue
        ids = Ids(cluster_id, partition.topic, topic_id, partition.partition)
        saved = _saved_manifest(directory, ids, report)
        try:
            manifest = bucket.manifest(ids, sound=False)
        except (TierCorrupt, StoreRefused):
            continue  # the check of the bucket has reported it
        if saved is not None:
            _check_contains(bucket, manifest, saved, os.path.join(directory, FILE_NAME), report)
        if manifest is not None and manifest.state is State.LIVE:
            _check_partition(bucket, directory, manifest, report)


def _cluster_id(data_dir: str) -> str:
    try:
        with open(os.path.join(data_dir, META_PROPERTIES), encoding="utf-8") as file:
            lines = dict(line.strip().split("=", 1) for line in file if "=" in line)
        return lines["cluster.id"]
    except (OSError, KeyError) as error:
        raise InvalidConfig(f"{data_dir} is not a node's data directory: {error!r}") from error


def _saved_manifest(directory: str, ids: Ids, report: Report) -> Manifest | None:
    try:
        return read_manifest(directory, ids)
    except LogError as error:
        report.add(FindingKind.LOCAL_DISAGREES, directory, str(error))
        return None


def _check_contains(bucket: Bucket, manifest: Manifest | None, saved: Manifest, path: str, report: Report) -> None:
    """Checks that the store contains everything that this node has seen in it (I10)."""
    seen = lineage.seen_of(saved)
    if seen is None:
        return
    fault = lineage.fault(manifest, seen)
    if fault is None and manifest is not None and lineage.beyond_recent(manifest, seen):
        fault = lineage.lost(manifest, saved, _page_or_none(bucket, saved))
    if fault is not None:
        report.add(
            FindingKind.WENT_BACK,
            path,
            f"{fault}. Keep this file and the segments beside it: they show what is missing",
        )


def _page_or_none(bucket: Bucket, saved: Manifest) -> LoadPage:
    """Loads pages of the saved manifest. A page that has been swept meanwhile counts as empty."""

    def load(ref: PageRef) -> ManifestPage:
        try:
            return bucket.page(saved.ids, ref)
        except (TierObjectMissing, TierCorrupt):
            return ManifestPage(ref.kind)

    return load


def _check_partition(bucket: Bucket, directory: str, manifest: Manifest, report: Report) -> None:
    local = sorted(_log_files(directory))
    if not local:
        return
    segments = list(live_segments(manifest, bucket.pages(manifest.ids), local[0][0]))
    # Only compaction of the bucket removes from it a batch that the local log has, and never from the newest segment.
    was_compacted = was_bucket_cleaned(directory)
    newest = None if manifest.sidecar is None else manifest.sidecar.key
    for (base, path), following in itertools.zip_longest(local, [base for base, _ in local[1:]]):
        data = _read(path)
        if data is None:
            continue
        if following is not None:
            _check_reaches(base, path, data, following, report)
        for segment in segments:
            if segment.end > base and (following is None or segment.base < following):
                # The file that records a compaction of the bucket may be lost, or on another node.
                has_gaps = segment.records < segment.end - segment.base
                may_lack = (was_compacted or has_gaps) and segment.sidecar_key != newest
                _compare(bucket.store, path, data, segment, report, may_lack=may_lack)


def _check_reaches(base: int, path: str, data: bytes, following: int, report: Report) -> None:
    """Checks that no offsets are missing between two local segments, which are deleted only from the front."""
    end = max((header.next_offset for _, header in _batches(data)), default=base)
    if end != following:
        detail = (
            f"its batches end at offset {end}, but the next segment begins at {following}: a file is damaged or missing"
        )
        report.add(FindingKind.LOCAL_DISAGREES, path, detail)


def _read(path: str) -> bytes | None:
    """The file's bytes; None if a running node has evicted the file meanwhile."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _batches(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """The positions and headers of the batches before the first bytes that are not a batch."""
    try:
        yield from headers(data)
    except CorruptRecord:
        return


def _log_files(directory: str) -> Iterator[tuple[int, str]]:
    for name in os.listdir(directory):
        parsed = layout.parse_file(name)
        if parsed is not None and parsed.suffix == layout.LOG:
            yield parsed.offset, os.path.join(directory, name)


def _compare(
    store: BlockingObjectStore,
    path: str,
    data: bytes,
    segment: RemoteSegment,
    report: Report,
    *,
    may_lack: bool,
) -> None:
    """Compares the batches of a local segment with those of a remote segment, by offset. Reports the first difference that
    compaction of either segment does not explain. `may_lack` means that compaction may have removed whole batches from the
    remote segment. Their number is not checked, because a tombstone that superseded them may be gone as well."""
    try:
        remote = store.get(segment.key, segment.position, segment.length).data
    except TierObjectMissing:
        return  # the check of the bucket has reported it
    report.bytes_read += len(remote)
    theirs = {header.base_offset: remote[at : at + header.size] for at, header in headers(remote)}
    for at, header in _batches(data):
        if not segment.base <= header.base_offset < segment.end:
            continue
        their = theirs.get(header.base_offset)
        if not may_lack if their is None else not _is_same(data[at : at + header.size], their):
            detail = f"the batch at offset {header.base_offset} differs from {segment.key}"
            report.add(FindingKind.LOCAL_DISAGREES, path, detail)
            return


def _is_same(ours: bytes, theirs: bytes) -> bool:
    try:
        return are_of_one_batch(ours, theirs)
    except LogError:
        return False  # one of them is damaged
