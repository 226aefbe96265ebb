"""Plans a read on the driver: loads the manifest of each partition and plans its splits, THREADS partitions at a time.

The plans are not a consistent snapshot of all partitions. Each plan names its own commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from pyspark_tidelog.bucket import open_store, option_errors
from pyspark_tidelog.options import Commits, Offsets, OptionError, ReadOptions
from pyspark_tidelog.plan import PartitionPlan
from pyspark_tidelog.pruning import NOTHING, Pruning
from pyspark_tidelog.ranged_reads import in_order
from pyspark_tidelog.split_planner import range_to_read, splits_of
from storage_tiers.cold.manifest.lookup import LoadPage
from storage_tiers.cold.manifest.model import MAX_PAGES, Ids, Manifest, RemoteSegment
from storage_tiers.cold.offline.bucket import Bucket, Topic
from storage_tiers.cold.offline.partition import first_offset_at, manifest_at
from storage_tiers.cold.segments.sidecar import INDEX, Sidecar
from storage_tiers.errors import TierObjectMissing

#: Partitions planned at once. Planning a partition takes a request for its manifest and for each page or sidecar.
THREADS = 16
#: The number of attempts to plan a partition whose manifest changes meanwhile. The objects that the old manifest names may then
#: be gone.
ATTEMPTS = 5


def plan_read(options: ReadOptions, pruning: Pruning = NOTHING) -> tuple[PartitionPlan, ...]:
    """Returns one plan per partition, by topic in the given order, then by partition. Raises OptionError or LogError."""
    store = open_store(options)
    try:
        return plan_bucket(Bucket(store, options.store), options, pruning)
    finally:
        store.close()


def plan_bucket(bucket: Bucket, options: ReadOptions, pruning: Pruning = NOTHING) -> tuple[PartitionPlan, ...]:
    with option_errors():
        cluster = bucket.cluster(options.cluster_id, options.topics, advice="choose one by the option clusterId")
        topics = [bucket.topic(cluster, name, options.topic_id) for name in options.topics]
    for topic in topics:
        _check_partitions("startingOffsets", options.starting.offsets, topic)
        _check_partitions("endingOffsets", options.ending.offsets, topic)
        if not isinstance(options.snapshot, int):
            _check_partitions("snapshotCommit", options.snapshot, topic)
    _check_one_partition(options, topics)

    def planning(ids: Ids) -> Callable[[], PartitionPlan]:
        return lambda: _plan_patiently(bucket, ids, options, pruning)

    tasks = (
        planning(topic.ids(partition))
        for topic in topics
        for partition in topic.partitions
        if pruning.wants_partition(partition)
    )
    return tuple(in_order(tasks, THREADS))


def described(plan: PartitionPlan) -> str:
    """A line for users: the offsets to read in a partition, and its manifest's commit and time."""
    where = f"{plan.ids} (topic id {plan.ids.topic_id}, cluster {plan.ids.cluster_id})"
    if plan.commit == 0:
        return f"{where}: nothing in the bucket yet"
    moment = datetime.fromtimestamp(plan.committed_at / 1000, UTC).isoformat(timespec="milliseconds")
    tasks = "1 split" if len(plan.splits) == 1 else f"{len(plan.splits)} splits"
    return (
        f"{where}: offsets [{plan.start}, {plan.end}) as of manifest commit {plan.commit} at {moment}, which ends at "
        f"{plan.manifest_end}; {tasks}, {plan.bytes} bytes"
    )


def _check_partitions(name: str, given: Offsets | None, topic: Topic) -> None:
    """As in Spark's Kafka source, offsets by partition must cover all partitions."""
    if given is None:
        return
    named = set(given[topic.name])
    unknown, missing = named - set(topic.partitions), set(topic.partitions) - named
    if unknown:
        raise OptionError(f"{name} names partitions of {topic.name} that do not exist: {sorted(unknown)}")
    if missing:
        advice = "0 is before the first" if name == "snapshotCommit" else "-2 is earliest, -1 latest"
        raise OptionError(f"{name} lacks partitions {sorted(missing)} of {topic.name}; {advice}")


def _check_one_partition(options: ReadOptions, topics: Sequence[Topic]) -> None:
    count = sum(len(topic.partitions) for topic in topics)
    if isinstance(options.snapshot, int) and count != 1:
        raise OptionError(
            f"snapshotCommit {options.snapshot} is the commit of one manifest, but {count} partitions are read; give a commit "
            'for each, as in {"topic": {"0": 12, "1": 9}}; pyspark_tidelog.describe lists the current ones'
        )


def _plan_patiently(bucket: Bucket, ids: Ids, options: ReadOptions, pruning: Pruning) -> PartitionPlan:
    for _ in range(ATTEMPTS - 1):
        try:
            return _plan(bucket, ids, options, pruning)
        except TierObjectMissing:
            continue  # a page or segment of this manifest was replaced and swept; a newer manifest names others
    return _plan(bucket, ids, options, pruning)


def _manifest(bucket: Bucket, load_page: LoadPage, ids: Ids, snapshot: Commits | None) -> Manifest:
    with option_errors():
        manifest = bucket.live_manifest(ids)
    if snapshot is None:
        return manifest
    commit = snapshot if isinstance(snapshot, int) else snapshot[ids.topic][ids.partition]
    with option_errors(f"snapshotCommit {commit} cannot be read: "):
        return manifest_at(manifest, load_page, commit)


def _plan(bucket: Bucket, ids: Ids, options: ReadOptions, pruning: Pruning) -> PartitionPlan:
    load_page = bucket.pages(ids, held=MAX_PAGES)
    manifest = _manifest(bucket, load_page, ids, options.snapshot)

    def find_time(timestamp: int) -> int | None:
        return first_offset_at(bucket, manifest, load_page, timestamp)

    def load_index(segment: RemoteSegment) -> Sidecar:
        return bucket.sidecar(segment, (INDEX,))

    start, end = pruning.offsets(*range_to_read(manifest, options.starting, options.ending, find_time))
    splits = splits_of(manifest, load_page, load_index, start, end, options.max_bytes, pruning.wants_newest)
    return PartitionPlan(
        ids, manifest.commit, manifest.committed_at, manifest.log_start, manifest.end, start, end, splits
    )
