"""`cluster.json`: the cluster in this bucket, and the node start that owns it.

    {"format": 2, "least_reader": 2, "cluster_id": "…", "incarnation": 7,
     "holder": {"node_id": 1, "directory_id": "…", "start_id": "…"}}

The incarnation rises by one whenever a node starts as the only controller, and by TAKE_OVER_GAP at a take-over. The node first
writes the new number and its start's random id to its data directory. Then it swaps the file, on condition that the file holds
exactly the node's old number. If two nodes run on copies of one directory, the second swap finds a different number, and that
node stops. The start id identifies a swap whose answer was lost.

    directory: has N, claims N+1 as S  ──>  swap N -> (N+1, S)  ──>  directory: has N+1

Invariants: the incarnation never falls; no manifest is committed before the swap, and each records the incarnation
(`transitions.check_writer` refuses a lower one). Not promised: that the older copy notices before its next commit or check.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER, Fields, check_version, document
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import (
    FencedWriter,
    LogError,
    PreconditionFailed,
    StoreBehind,
    TierCorrupt,
    TierObjectMissing,
    TierUnavailable,
)

#: A take-over raises the incarnation by this much. In a bucket restored to an earlier state, the number found may be lower than
#: the replaced node's.
TAKE_OVER_GAP = 1 << 16
#: Swaps that one call tries: the second attempt settles a lost answer, the others are for races.
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Holder:
    """`directory_id` identifies the data directory; `start_id` is random and new at each start."""

    node_id: int
    directory_id: str
    start_id: str


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of `cluster.json`. `holder` is the node start that raised `incarnation` last."""

    cluster_id: str
    incarnation: int
    holder: Holder


def encode_cluster(state: ClusterState) -> bytes:
    holder = state.holder
    return document(
        {
            "format": FORMAT,
            "least_reader": LEAST_READER,
            "cluster_id": state.cluster_id,
            "incarnation": state.incarnation,
            "holder": {
                "node_id": holder.node_id,
                "directory_id": holder.directory_id,
                "start_id": holder.start_id,
            },
        }
    )


def decode_cluster(data: bytes, cluster_id: str) -> ClusterState:
    fields = Fields.parse(data, keys.cluster_key(cluster_id))
    check_version(fields)
    if fields.text("cluster_id") != cluster_id:
        raise fields.bad(f"it belongs to cluster {fields.text('cluster_id')}")
    holder = fields.object("holder")
    return ClusterState(
        cluster_id,
        fields.number("incarnation"),
        Holder(holder.number("node_id"), holder.text("directory_id"), holder.text("start_id")),
    )


async def read_cluster(store: ObjectStore, cluster_id: str) -> ClusterState | None:
    """Returns None if the cluster has never been in this bucket. A take-over passes the incarnation found to `open_cluster`."""
    found = await _read(store, cluster_id)
    return found[0] if found is not None else None


def is_taken_over(found: ClusterState, directory_id: str, incarnation: int) -> bool:
    """Whether `found`, although lower than `incarnation`, proves that another node took the cluster over in a bucket that had
    gone backwards. A number from before this directory's own take-over is at least TAKE_OVER_GAP lower and proves nothing."""
    return found.holder.directory_id != directory_id and found.incarnation > incarnation - TAKE_OVER_GAP


async def open_cluster(
    store: ObjectStore, cluster_id: str, holder: Holder, expected_incarnation: int, raised_by: int = 1
) -> int:
    """Raises the incarnation from exactly `expected_incarnation` (0: the file must be absent) and returns the new one.

    The caller must already have written the new number and `holder.start_id` durably to its directory. Raises FencedWriter if
    the bucket holds a higher number, or a lower one that a take-over wrote. Raises StoreBehind if it holds another lower
    number, or none. Raises TierUnavailable if the outcome is unknown: repeat the call with the same arguments.
    """
    key = keys.cluster_key(cluster_id)
    new = ClusterState(cluster_id, expected_incarnation + raised_by, holder)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        found = await _read(store, cluster_id)
        if found is not None and found[0] == new:
            return new.incarnation
        if (found[0].incarnation if found is not None else 0) != expected_incarnation:
            raise _not_as_expected(found[0] if found is not None else None, expected_incarnation, holder)
        try:
            if found is None:
                await store.put(key, encode_cluster(new), if_absent=True)
            else:
                await store.put(key, encode_cluster(new), if_match=found[1])
            return new.incarnation
        except (PreconditionFailed, TierUnavailable) as error:
            failure = error
    raise TierUnavailable(f"the incarnation of cluster {cluster_id} could not be raised: {failure}") from failure


async def recreate_cluster(store: ObjectStore, new: ClusterState, shown: ClusterState | None) -> None:
    """Replaces `shown`, the file of a store that went backwards (None: absent or unreadable), by `new`. For repairs only.
    Raises PreconditionFailed if the file in the store has changed since, and TierUnavailable if the outcome is unknown."""
    key = keys.cluster_key(new.cluster_id)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        found, etag = await _readable(store, new.cluster_id)
        if found == new:
            return
        if found != shown:
            raise PreconditionFailed(f"{key} has changed meanwhile; plan its repair again")
        try:
            if etag is None:
                await store.put(key, encode_cluster(new), if_absent=True)
            else:
                await store.put(key, encode_cluster(new), if_match=etag)
            return
        except (PreconditionFailed, TierUnavailable) as error:
            failure = error
    raise TierUnavailable(f"{key} could not be written: {failure}") from failure


async def read_shown(store: ObjectStore, cluster_id: str) -> ClusterState | None:
    """Like `read_cluster`, but returns None also for an unreadable file."""
    return (await _readable(store, cluster_id))[0]


async def _readable(store: ObjectStore, cluster_id: str) -> tuple[ClusterState | None, str | None]:
    """Reads the file. Returns (the state, None if unreadable; the ETag, None if the file is absent)."""
    try:
        body = await store.get(keys.cluster_key(cluster_id))
    except TierObjectMissing:
        return None, None
    try:
        return decode_cluster(body.data, cluster_id), body.etag
    except TierCorrupt:
        return None, body.etag


async def check_incarnation(store: ObjectStore, cluster_id: str, incarnation: int, holder: Holder) -> None:
    """Raises FencedWriter if the bucket now belongs to another start, and StoreBehind if it shows an older state or none."""
    found = await _read(store, cluster_id)
    if found is None or (found[0].incarnation, found[0].holder.start_id) != (incarnation, holder.start_id):
        raise _not_as_expected(found[0] if found is not None else None, incarnation, holder)


async def _read(store: ObjectStore, cluster_id: str) -> tuple[ClusterState, str] | None:
    try:
        body = await store.get(keys.cluster_key(cluster_id))
    except TierObjectMissing:
        return None
    return decode_cluster(body.data, cluster_id), body.etag


def _not_as_expected(found: ClusterState | None, expected: int, mine: Holder) -> LogError:
    if found is None or (found.incarnation < expected and not is_taken_over(found, mine.directory_id, expected)):
        return StoreBehind(
            f"the bucket went backwards: its cluster.json shows incarnation {found.incarnation if found else 0}, this "
            f"directory has held {expected}. Put the bucket back as it was, or correct --store; delete nothing"
        )
    holder = found.holder
    return FencedWriter(
        f"cluster {found.cluster_id} is at incarnation {found.incarnation} in the bucket (node {holder.node_id}, directory "
        f"{holder.directory_id}, start {holder.start_id}), this directory is at {expected}: a copy of its directory has "
        "run, or the cluster was taken over. Stop this node; the one that started last owns the cluster. If its disk is "
        "lost and this directory is an older copy of it, keep this one and start on another, empty --data-dir with --take-over "
        f"{found.cluster_id}"
    )
