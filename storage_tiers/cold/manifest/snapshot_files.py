"""Snapshots of the metadata log in the bucket, from which a node is rebuilt when its disk is lost.

    <cluster>/metadata/<incarnation:010>-<index:020>-<term:010>.snapshot

This module does not interpret the bytes. The key carries the writer's incarnation, so that a node that does not know
yet that it was replaced cannot overwrite newer snapshots. The newest is the one with the highest (incarnation, index). A write
removes all but the newest KEPT snapshots of its own and lower incarnations.
"""

from __future__ import annotations

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.stores.port import FileBody, ObjectInfo, ObjectStore
from storage_tiers.errors import TierUnavailable

KEPT = 3


async def put_snapshot(
    store: ObjectStore, cluster_id: str, incarnation: int, index: int, term: int, body: bytes | FileBody
) -> None:
    """Writes a snapshot and removes old ones. On return it is durable and its size verified. The call may be repeated."""
    key = keys.snapshot_key(cluster_id, incarnation, index, term)
    info = await store.put(key, body)
    size = body.length if isinstance(body, FileBody) else len(body)
    if info.size != size:
        raise TierUnavailable(f"the store holds {info.size} of {size} bytes of {key}; it is written again")
    there = [info for info, number, _ in await _all(store, cluster_id) if number <= incarnation]
    doomed = [info.key for info in there[:-KEPT] if info.key != key]
    if doomed:
        await store.delete(doomed)


async def newest_snapshot(store: ObjectStore, cluster_id: str) -> ObjectInfo | None:
    """The newest snapshot of the cluster; None if it has no snapshot."""
    there = await _all(store, cluster_id)
    return there[-1][0] if there else None


async def _all(store: ObjectStore, cluster_id: str) -> list[tuple[ObjectInfo, int, int]]:
    """All snapshots with their incarnation and index, oldest first."""
    found = []
    async for info in store.list(keys.metadata_prefix(cluster_id)):
        try:
            parsed = keys.parse(info.key)
        except ValueError:
            continue
        if isinstance(parsed, keys.SnapshotKey):
            found.append((info, parsed.incarnation, parsed.index))
    return sorted(found, key=lambda each: each[1:])
