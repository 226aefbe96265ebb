"""Lists a bucket from its manifests and `topic.json` files, and from manifest pages if segments are requested. Reads no
segments and no sidecars, and needs no node.

Partitions are read one after another, so the listing is not a snapshot. An unreadable manifest is reported and does not hide
the others. This module does not check whether objects exist and are sound; `tidelog fsck` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.lookup import live_bytes, live_segments
from storage_tiers.cold.manifest.model import Ids, Manifest, PageRef, RemoteSegment, State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import TierCorrupt, TierObjectMissing
from storage_tiers.types import TopicId

#: The maximum number of attempts to read a manifest whose pages are rewritten meanwhile.
ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ColdPartition:
    """`current` means that the topic's name maps to this topic id and the topic is not deleted. It is None if `topic.json` is
    missing or damaged.

    `segments` is empty unless requested. `manifest` is None if it cannot be read; `fault` then says why.
    """

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    current: bool | None
    manifest: Manifest | None
    segments: Sequence[RemoteSegment] = ()
    fault: str = ""

    @property
    def segment_count(self) -> int:
        return (
            0
            if self.manifest is None
            else len(self.manifest.segments) + sum(ref.count for ref in self.manifest.live_pages)
        )

    @property
    def records(self) -> int:
        if self.manifest is None:
            return 0
        return sum(e.records for e in self.manifest.segments) + sum(ref.records for ref in self.manifest.live_pages)

    @property
    def bytes(self) -> int:
        return 0 if self.manifest is None else live_bytes(self.manifest)

    @property
    def removed_count(self) -> int:
        return (
            0
            if self.manifest is None
            else len(self.manifest.removed) + sum(ref.count for ref in self.manifest.removed_pages)
        )

    @property
    def time_span(self) -> tuple[int, int]:
        """The smallest and largest timestamp of the segments in ms; (-1, -1) if there are no segments."""
        if self.manifest is None or not self.segment_count:
            return -1, -1
        parts: list[RemoteSegment | PageRef] = [*self.manifest.segments, *self.manifest.live_pages]
        return min(part.min_timestamp for part in parts), max(part.max_timestamp for part in parts)


def cold_partitions(
    store: BlockingObjectStore, *, cluster_id: str | None, topic: str | None, with_segments: bool
) -> Iterator[ColdPartition]:
    """Every partition of every topic id in the bucket, or of the given cluster and topic, sorted by key."""
    bucket = Bucket(store)
    for cluster in [cluster_id] if cluster_id is not None else bucket.folders():
        for name in [topic] if topic is not None else bucket.topic_names(cluster):
            state = _topic_state(bucket, cluster, name)
            for key in bucket.manifests(cluster, name):
                yield _partition(bucket, key, state, with_segments)


def _topic_state(bucket: Bucket, cluster: str, topic: str) -> TopicState | None:
    try:
        return bucket.topic_state(cluster, topic)
    except TierCorrupt:
        return None


def _partition(bucket: Bucket, key: keys.ManifestKey, state: TopicState | None, with_segments: bool) -> ColdPartition:
    ids = Ids(key.cluster, key.topic, key.topic_id, key.partition)
    manifest: Manifest | None = None
    segments: tuple[RemoteSegment, ...] = ()
    fault = ""
    try:
        manifest, segments = _read(bucket, ids, with_segments)
    except (TierCorrupt, TierObjectMissing) as error:
        fault = str(error)
    return ColdPartition(
        ids.cluster_id,
        ids.topic,
        str(ids.topic_id),
        ids.partition,
        _is_current(state, ids.topic_id),
        manifest,
        segments,
        fault,
    )


def _is_current(state: TopicState | None, topic_id: TopicId) -> bool | None:
    return None if state is None else state.topic_id == topic_id and state.state is State.LIVE


def _read(bucket: Bucket, ids: Ids, with_segments: bool) -> tuple[Manifest, tuple[RemoteSegment, ...]]:
    for attempt in range(ATTEMPTS):
        manifest = bucket.manifest(ids)
        if manifest is None:
            raise TierObjectMissing(f"the manifest of {ids} was deleted while it was read")
        try:
            return manifest, tuple(live_segments(manifest, bucket.pages(ids))) if with_segments else ()
        except TierObjectMissing:  # the page was rewritten since the manifest was read
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")
