"""The table of tier operations: for every question the type of its answer, the kind of its deadline, and the function that
answers it from a partition's tier, the store, or the process's own state.

Both ends use it: the server runs the row's function, the client decodes the answer by its type. An operation is a question in
`operations.py` or `cluster_operations.py` and its row here; `Question.by` ties the function's types to the question's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from storage_tiers.cold.manifest import cluster_file, topic_file
from storage_tiers.cold.manifest.clusters import find_clusters
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter
from storage_tiers.cold.process import cluster_operations as ask_cluster
from storage_tiers.cold.process import operations as ask
from storage_tiers.cold.process import page_work, repair_work, store_work, takeover_work
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.question import Deadline, Operation, Question
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.port import PART_BYTES, ObjectStore

#: The most bytes of one offload in memory: four parts in flight (the S3 store's PARTS_AT_ONCE). A smaller object counts with
#: its own length.
OFFLOAD_BYTES = 4 * PART_BYTES

Answer = TypeVar("Answer")


class OfPartition(Protocol):
    """A question about one partition's manifest. It may have a field `seen`, which describes the broker's last manifest."""

    @property
    def ids(self) -> Ids: ...

    @property
    def writer(self) -> ManifestWriter: ...


Asked = TypeVar("Asked", bound=Question[Any])
AskedOf = TypeVar("AskedOf", bound=OfPartition)


def _tier(
    run: Callable[[PartitionTier, AskedOf], Awaitable[Answer]],
) -> Callable[[TierContext, AskedOf], Awaitable[Answer]]:
    """Runs a function on the tier of the question's partition."""

    async def on_tier(context: TierContext, question: AskedOf) -> Answer:
        tier = await context.partition(question.ids, question.writer, getattr(question, "seen", None))
        return await run(tier, question)

    return on_tier


def _store(
    run: Callable[[ObjectStore, Asked], Awaitable[Answer]],
) -> Callable[[TierContext, Asked], Awaitable[Answer]]:
    """Runs a function on the store."""

    async def on_store(context: TierContext, question: Asked) -> Answer:
        return await run(await context.store(), question)

    return on_store


async def _load_manifest(tier: PartitionTier, question: ask.LoadManifest) -> Manifest | None:
    loaded = await tier.load()
    return None if loaded is None else loaded.manifest


async def _repair(tier: PartitionTier, question: ask.Repair) -> ask.Repaired:
    return ask.Repaired(*await tier.repair(question.local, apply=question.apply, accepted=question.accepted))


async def _counters(context: TierContext, question: ask.Stats) -> ask.TierCounters:
    return context.counters()


NONE, READ, COMMIT, OFFLOAD, STEPS = Deadline.NONE, Deadline.READ, Deadline.COMMIT, Deadline.OFFLOAD, Deadline.STEPS
_ROWS: tuple[Operation[TierContext], ...] = (
    # --- reading
    ask.FetchChunk.by(STEPS, lambda at, q: at.downloads.fetch_chunk(q)),
    ask.FetchObject.by(STEPS, lambda at, q: at.downloads.fetch_object(q)),
    ask.RaisePriority.by(NONE, lambda at, q: at.downloads.raise_priority(q)),
    ask.PageSegments.by(STEPS, page_work.page_segments),
    ask.PlanPages.by(STEPS, page_work.plan_pages),
    # --- the cluster and its topics
    ask_cluster.Probe.by(COMMIT, store_work.probe, "the probe"),
    ask_cluster.ReadStoreTime.by(COMMIT, store_work.read_store_time, "reading the store's clock"),
    # COMMIT, not READ: this process does not retry, because the caller repeats the question and reports that it waits.
    ask_cluster.FindClusters.by(COMMIT, _store(lambda store, q: find_clusters(store)), "looking for clusters"),
    ask_cluster.ReadCluster.by(
        READ, _store(lambda store, q: cluster_file.read_cluster(store, q.cluster_id)), "cluster.json"
    ),
    ask_cluster.ShownCluster.by(
        READ, _store(lambda store, q: cluster_file.read_shown(store, q.cluster_id)), "cluster.json"
    ),
    ask_cluster.OpenCluster.by(
        COMMIT,
        _store(lambda s, q: cluster_file.open_cluster(s, q.cluster_id, q.holder, q.expected_incarnation, q.raised_by)),
        "raising the incarnation",
    ),
    ask_cluster.RecreateCluster.by(
        COMMIT,
        _store(lambda store, q: cluster_file.recreate_cluster(store, q.new, q.shown)),
        "writing cluster.json again",
    ),
    ask_cluster.HighestIncarnation.by(COMMIT, _store(repair_work.highest_incarnation), "looking through all manifests"),
    ask_cluster.PutSnapshot.by(COMMIT, _store(store_work.put_snapshot), "writing the metadata's snapshot"),
    ask_cluster.FindSnapshot.by(READ, _store(store_work.find_snapshot), "snapshots of the metadata"),
    ask_cluster.ListTopics.by(READ, _store(store_work.list_topics), "names of topics"),
    ask_cluster.ListTopicIds.by(READ, _store(store_work.list_topic_ids), "ids of topic {q.topic}"),
    ask_cluster.ListManifests.by(READ, _store(store_work.list_manifests), "manifests of topic {q.topic}"),
    ask_cluster.ReadTopic.by(
        READ, _store(lambda store, q: topic_file.read_topic(store, q.cluster_id, q.topic)), "topic.json"
    ),
    ask_cluster.ShownTopic.by(
        READ, _store(lambda store, q: topic_file.shown_topic(store, q.cluster_id, q.topic)), "topic.json"
    ),
    ask_cluster.PublishTopic.by(
        COMMIT, _store(lambda store, q: topic_file.publish_topic(store, q.topic)), "publishing topic {q.topic.topic}"
    ),
    ask_cluster.RepublishTopic.by(
        COMMIT, _store(lambda store, q: topic_file.republish_topic(store, q.topic)), "publishing topic {q.topic.topic}"
    ),
    ask_cluster.MarkTopicDeleted.by(
        COMMIT,
        _store(lambda store, q: topic_file.delete_topic(store, q.topic)),
        "marking topic {q.topic.topic} deleted",
    ),
    # --- one partition's manifest
    ask.LoadManifest.by(READ, _tier(_load_manifest), "manifest of {q.ids}"),
    ask.Extend.by(OFFLOAD, _tier(lambda tier, q: tier.extend(q.job)), "extending {q.ids}"),
    ask.ReplaceSegments.by(OFFLOAD, _tier(lambda tier, q: tier.replace(q.job, q.old)), "replacing segments of {q.ids}"),
    ask.Claim.by(COMMIT, _tier(lambda tier, q: tier.claim(q.leader_epoch)), "claiming {q.ids}"),
    ask.RaiseLogStart.by(COMMIT, _tier(lambda tier, q: tier.raise_log_start(q.offset)), "raising log start of {q.ids}"),
    ask.Expire.by(COMMIT, _tier(lambda tier, q: tier.expire(q.log_start)), "expiring segments of {q.ids}"),
    ask.DeletePartition.by(COMMIT, _tier(lambda tier, q: tier.delete_partition()), "deleting {q.ids}"),
    ask.TakePartition.by(STEPS, takeover_work.take_partition),
    ask.Repair.by(COMMIT, _tier(_repair), "repairing {q.ids}"),
    ask.Sweep.by(COMMIT, _tier(lambda tier, q: tier.sweep(q.grace_ms, q.listed)), "sweeping {q.ids}"),
    ask.SweepDeleted.by(COMMIT, _tier(lambda tier, q: tier.sweep_deleted(q.grace_ms, q.listed)), "sweeping {q.ids}"),
    # --- leftovers
    ask.ListKeys.by(READ, _store(store_work.list_keys), "keys under {q.prefix}"),
    ask.AbortUploads.by(COMMIT, store_work.abort_uploads, "ending uploads under {q.prefix}"),
    # --- the process itself
    ask.Stats.by(NONE, _counters),
)
#: The rows by the question's name, which is also its name on the wire.
TABLE: Mapping[str, Operation[TierContext]] = {row.question.__name__: row for row in _ROWS}


def row_of(question: Question[Any]) -> Operation[TierContext]:
    return TABLE[type(question).__name__]


async def perform(context: TierContext, question: Question[Answer]) -> Answer:
    """Answers the question within the deadline of its kind. Raises the operation's LogError."""
    row = row_of(question)
    what = row.what.format(q=question)
    match row.deadline:
        case Deadline.READ:
            return await context.reads.retry_until_deadline(what, lambda: row.run(context, question))
        case Deadline.COMMIT:
            return await context.in_time(row.run(context, question), what, question.extra_s(context.settings))
        case Deadline.OFFLOAD:
            assert isinstance(question, ask.Extend | ask.ReplaceSegments)
            async with context.offloads.hold(context.offload(min(question.job.length, OFFLOAD_BYTES))):
                return await context.in_time(row.run(context, question), what, question.extra_s(context.settings))
        case _:
            answer: Answer = await row.run(context, question)
            return answer
