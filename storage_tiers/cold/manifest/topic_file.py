"""`topic.json`: the topic id that a name means now, for readers of the bucket that have no broker to ask.

    {"format": 2, "least_reader": 2, "cluster_id": "…", "topic": "flights", "topic_id": "…", "state": "live",
     "revision": 3, "partitions": 6, "incarnation": 7, "configs": {"retention.ms": "-1"}, "earlier": ["…", …]}

Only the controller changes it, by compare-and-swap. Every change is an idempotent pure function of the state found: if an
answer is lost, the operation is repeated.

Invariants: an id in `earlier` never becomes current again. A topic is marked deleted only while the file still names its id,
and this id is never live again. The incarnation never falls. `revision` rises by one with every write, so that no two versions
have equal bytes and a delayed write cannot replace a later version.

Not promised: more than MAX_EARLIER (256) earlier ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import read_cluster
from storage_tiers.cold.manifest.documents import FORMAT, LEAST_READER, Fields, check_version, document
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import (
    FencedWriter,
    PreconditionFailed,
    StoreBehind,
    TierCorrupt,
    TierObjectMissing,
    TierUnavailable,
)
from storage_tiers.types import TopicId

MAX_EARLIER = 256
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class TopicState:
    """The content of `topic.json`. `partitions` is the number of partitions, `incarnation` the last writer's, `configs` the
    topic's own values by name. `earlier` are the ids that the name meant before, newest last. `revision` rises with every
    write."""

    cluster_id: str
    topic: str
    topic_id: TopicId
    state: State
    partitions: int
    incarnation: int
    configs: Mapping[str, str] = field(default_factory=dict)
    earlier: tuple[TopicId, ...] = ()
    revision: int = 0


# --- transitions ------------------------------------------------------------------------------------------------------
def published(found: TopicState | None, new: TopicState) -> TopicState:
    """The file with `new` as the current topic. `new.revision` is the last one that the writer has seen, 0 if none. Raises
    FencedWriter if the id was replaced or deleted before, or a newer incarnation has written, and StoreBehind if the file is
    missing or older than `new.revision`."""
    if (found.revision if found is not None else 0) < new.revision:
        shown = "is gone" if found is None else f"is at revision {found.revision}"
        raise StoreBehind(
            f"the bucket went backwards: topic.json of {new.topic} {shown}, revision {new.revision} was seen there. Nothing of "
            "the topic is published, offloaded or deleted until it is back; put the bucket back as it was"
        )
    if found is None:
        return new
    _check_incarnation(found, new.incarnation)
    if new.topic_id in found.earlier or (found.topic_id == new.topic_id and found.state is State.DELETED):
        raise FencedWriter(
            f"topic {new.topic} with id {new.topic_id} was deleted or replaced in the bucket, where the name now refers to "
            f"{found.topic_id} ({found.state.value})"
        )
    if found.topic_id == new.topic_id:
        partitions = max(found.partitions, new.partitions)
        return replace(new, partitions=partitions, earlier=found.earlier, revision=found.revision)
    return replace(new, earlier=(*found.earlier, found.topic_id)[-MAX_EARLIER:], revision=found.revision)


def republished(found: TopicState | None, new: TopicState) -> TopicState:
    """Like `published`, but also over a file older than `new.revision`. The result has the higher revision of both. For repairs
    only."""
    state = published(found, replace(new, revision=0))
    return replace(state, revision=max(state.revision, new.revision))


def marked_deleted(found: TopicState | None, deleted: TopicState) -> TopicState:
    """The file with state deleted; unchanged if the name means another id now. A file that was never written is created as
    deleted, so that a late first write cannot make it live."""
    if found is None:
        return replace(deleted, state=State.DELETED)
    if found.topic_id != deleted.topic_id:
        return found
    _check_incarnation(found, deleted.incarnation)
    return replace(found, state=State.DELETED, incarnation=deleted.incarnation)


def _check_incarnation(found: TopicState, incarnation: int) -> None:
    if incarnation < found.incarnation:
        raise FencedWriter(
            f"topic.json of {found.topic} was written by incarnation {found.incarnation}, this node is {incarnation}: a "
            "copy of its directory has run, or the cluster was taken over. Stop this node; the one that started last "
            "owns the cluster"
        )


# --- the file ---------------------------------------------------------------------------------------------------------
def encode_topic(state: TopicState) -> bytes:
    return document(
        {
            "format": FORMAT,
            "least_reader": LEAST_READER,
            "cluster_id": state.cluster_id,
            "topic": state.topic,
            "topic_id": str(state.topic_id),
            "state": state.state.value,
            "revision": state.revision,
            "partitions": state.partitions,
            "incarnation": state.incarnation,
            "configs": dict(sorted(state.configs.items())),
            "earlier": [str(topic_id) for topic_id in state.earlier],
        }
    )


def decode_topic(data: bytes, cluster_id: str, topic: str) -> TopicState:
    fields = Fields.parse(data, keys.topic_file_key(cluster_id, topic))
    check_version(fields)
    if (fields.text("cluster_id"), fields.text("topic")) != (cluster_id, topic):
        raise fields.bad(f"it belongs to topic {fields.text('topic')} of cluster {fields.text('cluster_id')}")
    configs = fields.object("configs")
    try:
        return TopicState(
            cluster_id,
            topic,
            TopicId.parse(fields.text("topic_id")),
            State(fields.text("state")),
            fields.number("partitions"),
            fields.number("incarnation"),
            {name: configs.text(name) for name, _ in configs.items()},
            tuple(TopicId.parse(text) for text in fields.texts("earlier")),
            fields.number("revision"),
        )
    except ValueError as error:
        raise fields.bad(str(error)) from error


async def read_topic(store: ObjectStore, cluster_id: str, topic: str) -> TopicState | None:
    """Returns the topic's state; None if no topic of that name has ever been in the bucket."""
    found = await _read(store, cluster_id, topic)
    return found[0] if found is not None else None


async def shown_topic(store: ObjectStore, cluster_id: str, topic: str) -> TopicState | None:
    """Like `read_topic`, but returns None also for an unreadable file."""
    found = await _read(store, cluster_id, topic, readable=False)
    return found[0] if found is not None else None


async def publish_topic(store: ObjectStore, new: TopicState) -> TopicState:
    """Makes `new` (state live) current, or updates its partition count (never lowered) and configs."""
    if await read_topic(store, new.cluster_id, new.topic) is None:
        await _check_cluster(store, new)
    return await _change(store, new, lambda found: published(found, new))


async def republish_topic(store: ObjectStore, new: TopicState) -> TopicState:
    """Makes `new` current over an older, missing or unreadable file. Raises FencedWriter as `published` does."""
    return await _change(store, new, lambda found: republished(found, new), readable=False)


async def _check_cluster(store: ObjectStore, new: TopicState) -> None:
    """Raises FencedWriter if `cluster.json` has a newer incarnation. A topic without a file has no incarnation to compare."""
    cluster = await read_cluster(store, new.cluster_id)
    if cluster is not None and cluster.incarnation > new.incarnation:
        raise FencedWriter(
            f"cluster {new.cluster_id} is at incarnation {cluster.incarnation} in the bucket, this node is "
            f"{new.incarnation}: "
            "a copy of its directory has run, or the cluster was taken over. Stop this node; the one that started last "
            "owns the cluster"
        )


async def delete_topic(store: ObjectStore, deleted: TopicState) -> TopicState:
    """Marks the topic deleted if the file still names this id; returns the file's state."""
    return await _change(store, deleted, lambda found: marked_deleted(found, deleted))


async def _change(
    store: ObjectStore,
    wanted: TopicState,
    change: Callable[[TopicState | None], TopicState],
    *,
    readable: bool = True,
) -> TopicState:
    key = keys.topic_file_key(wanted.cluster_id, wanted.topic)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        found = await _read(store, wanted.cluster_id, wanted.topic, readable=readable)
        before = found[0] if found is not None else None
        new = change(before)
        if before is not None and new == before:
            return new
        new = replace(new, revision=new.revision + 1)
        try:
            if found is None:
                await store.put(key, encode_topic(new), if_absent=True)
            else:
                await store.put(key, encode_topic(new), if_match=found[1])
            return new
        except (PreconditionFailed, TierUnavailable) as error:
            failure = error
    raise TierUnavailable(f"{key} could not be written: {failure}") from failure


async def _read(
    store: ObjectStore, cluster_id: str, topic: str, *, readable: bool = True
) -> tuple[TopicState | None, str] | None:
    """The file's state and ETag. An unreadable file raises TierCorrupt if `readable`, else its state is None."""
    try:
        body = await store.get(keys.topic_file_key(cluster_id, topic))
    except TierObjectMissing:
        return None
    try:
        return decode_topic(body.data, cluster_id, topic), body.etag
    except TierCorrupt:
        if readable:
            raise
        return None, body.etag
