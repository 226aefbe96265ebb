"""What a bucket says of its topics: clusters, live topic ids, partitions and their manifests. Reads only.

Invariant: nothing is guessed. Several clusters under one prefix, a topic that is not there or was deleted, a partition
deleted while it is looked at: each is an error that says what there is. Not promised: that several partitions are seen at
one moment; each manifest is of its own commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_tidelog.options import OptionError, ReadOptions
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.lookup import state_at
from storage_tiers.cold.manifest.model import NEVER, Entry, Ids, Page, PageRef, Root, State, first_root
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import InvalidRequest, TierCorrupt, TierObjectMissing
from storage_tiers.types import TopicId

#: Names that an error lists at most.
_LISTED = 50


def open_store(options: ReadOptions) -> BlockingObjectStore:
    location = StoreLocation.parse(options.store, endpoint=options.s3_endpoint, region=options.s3_region)
    return open_blocking_store(location)


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
    """Errors of every method: OptionError (the user's to correct), TierUnavailable, TierCorrupt, StoreRefused."""

    def __init__(self, store: BlockingObjectStore, url: str) -> None:
        self.store = store
        self._url = url

    # --- topics -------------------------------------------------------------------------------------------------------
    def cluster(self, wanted: str | None) -> str:
        """The cluster id to read from: `wanted`, or the only one there is."""
        if wanted is not None:
            if not self._has_cluster(wanted):
                raise OptionError(f"there is no cluster {wanted!r} in {self._url}; {self._clusters_found()}")
            return wanted
        found = self._clusters()
        if len(found) != 1:
            advice = "; choose one by the option clusterId" if found else ""
            raise OptionError(f"the cluster to read is not clear: {self._clusters_found(found)}{advice}")
        return found[0]

    def _has_cluster(self, cluster: str) -> bool:
        try:
            self.store.get(keys.cluster_key(cluster), 0, 1)
        except (TierObjectMissing, ValueError):  # ValueError: a folder's name that could be no cluster's
            return False
        return True

    def _clusters(self) -> list[str]:
        return [folder for folder in self.store.list_folders("") if self._has_cluster(folder)]

    def _clusters_found(self, found: Sequence[str] | None = None) -> str:
        found = self._clusters() if found is None else found
        if not found:
            return f"{self._url} holds no tidelog cluster (no <cluster id>/cluster.json)"
        return f"{self._url} holds {'the cluster' if len(found) == 1 else 'the clusters'} {_listed(found)}"

    def topic(self, cluster: str, name: str, topic_id: str | None) -> Topic:
        """A topic by its live id, or by an id that it has or had."""
        try:
            state = self._topic_state(cluster, name)
            wanted = None if topic_id is None else TopicId.parse(topic_id)
        except ValueError as error:
            raise OptionError(f"cannot read topic {name!r}: {error}") from None
        if wanted is None:
            wanted = self._live_id(cluster, name, state)
        partitions = self._partitions(cluster, name, wanted)
        if state is not None and state.topic_id == wanted:
            partitions |= set(range(state.partitions))
        if not partitions:
            raise OptionError(f"topic {name} has no topic id {wanted} in {self._url}; {_ids_known(state)}")
        return Topic(cluster, name, wanted, tuple(sorted(partitions)))

    def _topic_state(self, cluster: str, name: str) -> TopicState | None:
        try:
            return decode_topic(self.store.get(keys.topic_file_key(cluster, name)).data, cluster, name)
        except TierObjectMissing:
            return None

    def _live_id(self, cluster: str, name: str, state: TopicState | None) -> TopicId:
        if state is None:
            topics = self.store.list_folders(keys.topics_prefix(cluster))
            there = f"topics are {_listed(topics)}" if topics else "there is no topic"
            raise OptionError(f"there is no topic {name!r} in cluster {cluster} of {self._url}; {there}")
        if state.state is State.DELETED:
            raise OptionError(f"topic {name} (topic id {state.topic_id}) was deleted")
        return state.topic_id

    def _partitions(self, cluster: str, name: str, topic_id: TopicId) -> set[int]:
        found = set()
        for info in self.store.list(keys.manifests_prefix(cluster, name, topic_id)):
            try:
                parsed = keys.parse(info.key)
            except ValueError:
                continue
            if isinstance(parsed, keys.ManifestKey):
                found.add(parsed.partition)
        return found

    # --- partitions ---------------------------------------------------------------------------------------------------
    def root(self, ids: Ids) -> Root:
        """The manifest as it is now; the root that is never stored (commit 0) where there is none yet."""
        try:
            root = decode(self.store.get(ids.manifest_key).data, ids)
        except TierObjectMissing:
            return first_root(ids)
        if root.state is State.DELETED:
            raise OptionError(f"{ids} of topic id {ids.topic_id} was deleted")
        return root

    def root_at(self, ids: Ids, commit: int) -> Root:
        """The manifest as of one of its commits. OptionError if that has not happened, or is not whole any more.

        Log start of a past commit is known where it is pinned; else it is where its first range begins, or what log start is
        now if that cuts this very range.
        """
        root = self.root(ids)
        if commit == root.commit:
            return root
        pages: dict[str, Page] = {}

        def load_page(ref: PageRef) -> Page:
            if ref.key not in pages:
                pages[ref.key] = self.page(ids, ref)
            return pages[ref.key]

        try:
            entries = state_at(root, load_page, commit)
        except InvalidRequest as error:
            raise OptionError(f"snapshotCommit {commit} cannot be read: {error}") from None
        pin = next((pin for pin in root.pins if pin.commit == commit), None)
        first = entries[0] if entries else None
        start = 0 if first is None else first.base
        if pin is not None:
            start = pin.log_start
        elif first is not None and first.base < root.log_start < first.end:
            start = root.log_start
        newest = max((entry.added for entry in entries), default=NEVER)
        return replace(
            root,
            commit=commit,
            committed_at=newest.time_ms,
            log_start=start,
            end=entries[-1].end if entries else start,
            entries=tuple(entries),
            pages=(),
        )

    def page(self, ids: Ids, ref: PageRef) -> Page:
        return decode_page(self.store.get(ref.key).data, ids, ref)

    def sidecar(self, entry: Entry, sections: Sequence[str]) -> Sidecar:
        """These sections of an entry's sidecar, by one ranged GET."""
        position, length = sidecar.span(entry.sections, sections)
        return parse_sidecar(entry, sections, self.store.get(entry.sidecar_key, position, length).data)


def parse_sidecar(entry: Entry, sections: Sequence[str], data: bytes) -> Sidecar:
    """`data` holds the span of these sections. TierCorrupt if it is cut short or a section fails its CRC-32C."""
    position, length = sidecar.span(entry.sections, sections)
    missing = set(sections) - {section.name for section in entry.sections}
    if missing or len(data) != length:
        fault = f"lacks {', '.join(sorted(missing))}" if missing else f"has {len(data)} of {length} bytes"
        raise TierCorrupt(f"the sidecar {entry.sidecar_key} {fault}; run `tidelog fsck`")
    return sidecar.parse_part(
        data,
        position,
        entry.sections,
        base=entry.base,
        end=entry.end,
        length=entry.length,
        crc=entry.crc32c,
        where=entry.sidecar_key,
    )


def _ids_known(state: TopicState | None) -> str:
    if state is None:
        return "there is no topic of that name"
    return f"its ids are {_listed([str(known) for known in (state.topic_id, *reversed(state.earlier))])}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
