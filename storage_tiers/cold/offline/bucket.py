"""Reads a bucket without a node: clusters, topics, partitions, manifests, their pages, sidecars.

    Bucket.cluster ──> topic ──> manifest ──> pages, sidecars ──> `partition`: offsets, times, records

Every offline reader of a bucket (`fsck`, listings, Spark, the SDK's cold mode, Lambdas) uses this module, and decodes no
stored document itself. The module only reads, makes one request after another, and caches nothing except in the loader of
`pages`.

Invariants: the module never guesses. If several clusters fit, or a topic is absent or deleted, it raises an error that says so.
A page or a section is returned only if its checksum matches. Not promised: a snapshot of several partitions at one moment.

Errors: InvalidRequest (the caller must correct its arguments), UnknownTopicOrPartition, and those of reading:
TierObjectMissing, TierCorrupt, StoreRefused, TierUnavailable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import ClusterState, decode_cluster
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.lookup import LoadPage
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestPage, PageRef, RemoteSegment, State
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.segment_sidecar import parse_segment_part
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import InvalidRequest, TierCorrupt, TierObjectMissing, UnknownTopicOrPartition
from storage_tiers.types import TopicId

#: The most names that an error lists.
_LISTED = 50


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic id and its partitions; some may have no manifest yet."""

    cluster_id: str
    name: str
    topic_id: TopicId
    partitions: tuple[int, ...]

    def ids(self, partition: int) -> Ids:
        return Ids(self.cluster_id, self.name, self.topic_id, partition)


class Bucket:
    """`name` stands for the store in errors. The caller closes the store."""

    def __init__(self, store: BlockingObjectStore, name: str = "the store") -> None:
        self.store = store
        self._name = name

    # --- clusters -----------------------------------------------------------------------------------------------------
    def folders(self) -> list[str]:
        """Folders whose name could be a cluster's, with a `cluster.json` or without."""
        return [folder for folder in self.store.list_folders("") if _may_be_cluster(folder)]

    def clusters(self) -> list[str]:
        """The clusters that have a `cluster.json`."""
        return [folder for folder in self.folders() if self._has_cluster(folder)]

    def cluster(self, wanted: str | None = None, topics: Sequence[str] = (), *, advice: str = "name one") -> str:
        """Returns `wanted` if given, else the only cluster, else the only one that has all of `topics`. Raises InvalidRequest
        if there is no such cluster, or if several remain; the text has `advice` if the store has clusters."""
        if wanted is not None:
            if not self._has_cluster(wanted):
                raise InvalidRequest(f"there is no cluster {wanted!r} in {self._name}; {self._holds(self.clusters())}")
            return wanted
        found = self.clusters()
        fitting = found
        for topic in topics if len(found) > 1 else ():
            fitting = [cluster for cluster in self._having(found, topic) if cluster in fitting]
        if len(fitting) != 1:
            have = (
                f", {len(fitting) or 'none'} of which have {_listed([*map(repr, topics)])}" if found and topics else ""
            )
            raise InvalidRequest(self._holds(found) + have + (f": {advice}" if found else ""))
        return fitting[0]

    def _having(self, clusters: Sequence[str], topic: str) -> list[str]:
        """Clusters with a live topic of that name; if there is none, those where it was deleted."""
        states: dict[State, list[str]] = {State.LIVE: [], State.DELETED: []}
        for cluster in clusters:
            with contextlib.suppress(ValueError):  # a topic cannot have this name
                state = self.topic_state(cluster, topic)
                if state is not None:
                    states[state.state].append(cluster)
        return states[State.LIVE] or states[State.DELETED]

    def cluster_state(self, cluster: str) -> ClusterState:
        return decode_cluster(self.store.get(keys.cluster_key(cluster)).data, cluster)

    def _has_cluster(self, cluster: str) -> bool:
        try:
            self.store.get(keys.cluster_key(cluster), 0, 1)
        except (TierObjectMissing, ValueError):  # ValueError: a cluster cannot have this name
            return False
        return True

    def _holds(self, clusters: Sequence[str]) -> str:
        if not clusters:
            return f"{self._name} holds no tidelog cluster (no <cluster id>/cluster.json)"
        return f"{self._name} holds {'the cluster' if len(clusters) == 1 else 'the clusters'} {_listed(clusters)}"

    # --- topics -------------------------------------------------------------------------------------------------------
    def topic_names(self, cluster: str) -> Sequence[str]:
        """Every topic in the bucket, including deleted ones until they are swept."""
        return self.store.list_folders(keys.topics_prefix(cluster))

    def topic_state(self, cluster: str, name: str) -> TopicState | None:
        """The topic's file; None if there is none."""
        try:
            return decode_topic(self.store.get(keys.topic_file_key(cluster, name)).data, cluster, name)
        except TierObjectMissing:
            return None

    def topic(self, cluster: str, name: str, topic_id: str | None = None) -> Topic:
        """The topic of that name under `topic_id`, which may be an earlier id; under its live id if `topic_id` is None."""
        try:
            state = self.topic_state(cluster, name)
            wanted = None if topic_id is None else TopicId.parse(topic_id)
        except ValueError as error:
            raise InvalidRequest(f"cannot read topic {name!r}: {error}") from None
        if wanted is None:
            wanted = self._live_id(cluster, name, state)
        partitions = {key.partition for key in self._manifests(keys.manifests_prefix(cluster, name, wanted))}
        if state is not None and state.topic_id == wanted:
            partitions |= set(range(state.partitions))
        if not partitions:
            raise UnknownTopicOrPartition(f"topic {name} has no topic id {wanted} in {self._name}; {_known_ids(state)}")
        return Topic(cluster, name, wanted, tuple(sorted(partitions)))

    def _live_id(self, cluster: str, name: str, state: TopicState | None) -> TopicId:
        if state is None:
            topics = self.topic_names(cluster)
            there = f"topics are {_listed(topics)}" if topics else "there is no topic"
            raise UnknownTopicOrPartition(f"there is no topic {name!r} in cluster {cluster} of {self._name}; {there}")
        if state.state is State.DELETED:
            raise UnknownTopicOrPartition(f"topic {name} (topic id {state.topic_id}) was deleted")
        return state.topic_id

    # --- manifests ----------------------------------------------------------------------------------------------------
    def manifests(self, cluster: str, topic: str) -> Iterator[keys.ManifestKey]:
        """The keys of the manifests of every id that the topic's name had, in order."""
        prefix = keys.topic_prefix(cluster, topic)
        for folder in self.store.list_folders(prefix):
            yield from self._manifests(f"{prefix}{folder}/manifests/")

    def _manifests(self, prefix: str) -> Iterator[keys.ManifestKey]:
        for info in self.store.list(prefix):
            try:
                parsed = keys.parse(info.key)
            except ValueError:
                continue
            if isinstance(parsed, keys.ManifestKey):
                yield parsed

    def manifest(self, ids: Ids, *, sound: bool = True) -> Manifest | None:
        """The current manifest, even of a deleted partition; None if there is none. `sound` is as in `decode`."""
        try:
            return decode(self.store.get(ids.manifest_key).data, ids, sound=sound)
        except TierObjectMissing:
            return None

    def live_manifest(self, ids: Ids) -> Manifest:
        """The current manifest; if nothing was offloaded yet, an empty one (commit 0), which was never stored."""
        manifest = self.manifest(ids)
        if manifest is None:
            return first_manifest(ids)
        if manifest.state is State.DELETED:
            raise UnknownTopicOrPartition(f"{ids} of topic id {ids.topic_id} was deleted")
        return manifest

    def page(self, ids: Ids, ref: PageRef) -> ManifestPage:
        return decode_page(self.store.get(ref.key).data, ids, ref)

    def pages(self, ids: Ids, *, held: int = 1) -> LoadPage:
        """Returns a loader of one partition's pages. It keeps the last `held` pages in memory; each may have 8,192 segments."""
        known: dict[str, ManifestPage] = {}

        def load(ref: PageRef) -> ManifestPage:
            if ref.key not in known:
                page = self.page(ids, ref)
                if len(known) == held:
                    del known[next(iter(known))]
                known[ref.key] = page
            return known[ref.key]

        return load

    def sidecar(self, segment: RemoteSegment, sections: Sequence[str]) -> Sidecar:
        """These sections of a remote segment's sidecar, by one ranged GET."""
        position, length = sidecar.span(segment.sections, sections)
        return parse_sidecar(segment, sections, self.store.get(segment.sidecar_key, position, length).data)


def parse_sidecar(segment: RemoteSegment, sections: Sequence[str], data: bytes) -> Sidecar:
    """Parses these sections of a sidecar from `data`, which holds their span. Raises TierCorrupt if `data` is cut short or a
    section fails its CRC-32C."""
    position, length = sidecar.span(segment.sections, sections)
    missing = set(sections) - {section.name for section in segment.sections}
    if missing or len(data) != length:
        fault = f"lacks {', '.join(sorted(missing))}" if missing else f"has {len(data)} of {length} bytes"
        raise TierCorrupt(f"the sidecar {segment.sidecar_key} {fault}; run `tidelog fsck`")
    return parse_segment_part(data, position, segment)


def _may_be_cluster(folder: str) -> bool:
    try:
        keys.cluster_key(folder)
    except ValueError:
        return False
    return True


def _known_ids(state: TopicState | None) -> str:
    if state is None:
        return "there is no topic of that name"
    return f"its ids are {_listed([str(known) for known in (state.topic_id, *reversed(state.earlier))])}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
