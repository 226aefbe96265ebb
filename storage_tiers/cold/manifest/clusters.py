"""Lists the clusters in a store, for a node that starts with an empty directory.

A folder counts as a cluster if it has a `cluster.json` or any topics, because topics without a `cluster.json` may be all that a
copy or a mistake has left. Reads only. Not promised: detection of a cluster that starts at the same moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import StoreRefused, TierObjectMissing

#: The most folders of a store that are examined; a prefix with more is refused.
MAX_FOLDERS = 1_000
#: The most topics of a cluster that are listed by name; all topics are counted.
NAMED_TOPICS = 5


@dataclass(frozen=True, slots=True)
class ClusterFound:
    """`started_ms` is the time at which a node last started on the cluster, by the store's clock; None without
    `cluster.json`."""

    cluster_id: str
    started_ms: int | None
    topics: int
    some_topics: tuple[str, ...]


async def find_clusters(store: ObjectStore) -> tuple[ClusterFound, ...]:
    """The clusters in the order of their ids. Raises StoreRefused if the prefix holds more than MAX_FOLDERS folders."""
    folders = await store.list_folders("")
    if len(folders) > MAX_FOLDERS:
        raise StoreRefused(
            f"the store's prefix holds {len(folders)} folders, too many to look for clusters in: choose a prefix of its own "
            "for tidelog, or start with --new-cluster to begin a new cluster here"
        )
    found = [await _cluster_in(store, folder) for folder in folders]
    return tuple(cluster for cluster in found if cluster is not None)


async def _cluster_in(store: ObjectStore, folder: str) -> ClusterFound | None:
    try:
        key, topics_prefix = keys.cluster_key(folder), keys.topics_prefix(folder)
    except ValueError:
        return None  # a cluster cannot have this name
    try:
        started_ms: int | None = (await store.head(key)).modified_ms
    except TierObjectMissing:
        started_ms = None
    topics = await store.list_folders(topics_prefix)
    if started_ms is None and not topics:
        return None
    return ClusterFound(folder, started_ms, len(topics), tuple(topics[:NAMED_TOPICS]))
