"""Derives a cluster's metadata from the contents of its bucket. Pure.

    snapshot + topic files + ids ──inventory──> which topics live, which are being deleted
    inventory + claimed manifests ──records──> one metadata batch

A snapshot of the metadata log may be a minute old, or missing. A `topic.json` is newer, and is complete for its topic name.
Manifests are authoritative for offsets and epochs. If the snapshot and the file disagree about a name, the file wins, unless
its topic is deleted according to the file itself or to the snapshot.

Invariants: epochs begin EPOCH_GAP above all epochs that objects show, and producer ids PRODUCER_ID_GAP above all producer ids
that objects show, because the old node may have issued higher ones. A topic id is live or deleting, never both. The deletion of
an id is completed only if a record shows that it was deleted. A topic id that has objects but no such record is `unexplained`,
and its deletion must be proved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import PartitionImage
from service.metadata.planner import PRODUCER_ID_GAP
from service.metadata.snapshot import config_record, endpoint_records, partition_record
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.types import TopicId

EPOCH_GAP = 1 << 16


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """Everything in the bucket under a topic's name. `manifests` are the numbers of the partitions that have a manifest, by
    topic id."""

    name: str
    state: TopicState | None
    manifests: Mapping[TopicId, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic that the take-over keeps. `configs` are its own configs, in Kafka's form."""

    name: str
    topic_id: TopicId
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DoomedTopic:
    """A deleted topic whose objects are still in the bucket."""

    name: str
    topic_id: TopicId
    partitions: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Topics in the order of their names. `unexplained` are the doomed topics that have objects, and that neither `topic.json`
    nor the snapshot shows as deleted or replaced. Only a `deleted` manifest can prove their deletion."""

    live: tuple[LiveTopic, ...]
    doomed: tuple[DoomedTopic, ...]
    unexplained: tuple[DoomedTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A partition's claimed manifest. Clients continue at its `end`. `committed_at` is the time of the manifest's commit, in ms
    since 1970."""

    leader_epoch: int
    log_start: int
    end: int
    committed_at: int
    producer_id: int = -1


def inventory(snapshot: MetadataImage | None, seen: Iterable[SeenTopic]) -> Inventory:
    snapshot = snapshot or MetadataImage()
    live: list[LiveTopic] = []
    doomed: dict[TopicId, DoomedTopic] = {
        gone.topic_id: DoomedTopic(gone.name, gone.topic_id, gone.partition_count)
        for gone in snapshot.deleting.values()
    }
    unexplained: set[TopicId] = set()
    by_name = {topic.name: topic for topic in seen}
    for name in sorted(by_name.keys() | snapshot.topic_ids.keys()):
        topic = by_name.get(name, SeenTopic(name, None))
        current = _current(snapshot, topic)
        if current is not None:
            live.append(current)
        for topic_id in _ids(snapshot, topic):
            if current is not None and topic_id == current.topic_id:
                continue
            known = doomed.get(topic_id)
            count = max(_count(snapshot, topic, topic_id), known.partitions if known is not None else 0)
            doomed[topic_id] = DoomedTopic(name, topic_id, count)
            if topic_id in topic.manifests and not _called_deleted(snapshot, topic, topic_id):
                unexplained.add(topic_id)
    alive = {topic.topic_id for topic in live}
    rest = (gone for topic_id, gone in doomed.items() if topic_id not in alive)
    left = tuple(sorted(rest, key=lambda gone: (gone.name, gone.topic_id)))
    return Inventory(tuple(live), left, tuple(gone for gone in left if gone.topic_id in unexplained))


def _called_deleted(snapshot: MetadataImage, topic: SeenTopic, topic_id: TopicId) -> bool:
    """Whether an irreversible fact shows the deletion: the deletion has begun or ended, or the name has a newer topic id."""
    if topic_id in snapshot.deleting or topic_id in snapshot.gone:
        return True
    state = topic.state
    if state is None:
        return False
    return topic_id in state.earlier or (topic_id == state.topic_id and state.state is State.DELETED)


def _current(snapshot: MetadataImage, topic: SeenTopic) -> LiveTopic | None:
    """The topic that the name refers to now."""
    state, known = topic.state, snapshot.topic(topic.name)

    def ended(topic_id: TopicId) -> bool:
        return topic_id in snapshot.deleting or topic_id in snapshot.gone

    if state is None:
        topic_id = None if known is None else known.topic_id
    elif known is None or known.topic_id == state.topic_id or known.topic_id in state.earlier:
        topic_id = state.topic_id if state.state is State.LIVE and not ended(state.topic_id) else None
    else:
        # The file does not know the snapshot's topic, so one of the two is older than the other.
        newer = state.state is State.DELETED or ended(state.topic_id)
        topic_id = known.topic_id if newer else state.topic_id
    if topic_id is None:
        return None
    configs = state.configs if state is not None and state.topic_id == topic_id else snapshot.topic_config(topic.name)
    return LiveTopic(topic.name, topic_id, max(1, _count(snapshot, topic, topic_id)), dict(configs))


def _ids(snapshot: MetadataImage, topic: SeenTopic) -> Iterator[TopicId]:
    """The ids of all topics of that name that may have left objects."""
    yield from topic.manifests
    if topic.state is not None:
        yield topic.state.topic_id
    known = snapshot.topic(topic.name)
    if known is not None:
        yield known.topic_id


def _count(snapshot: MetadataImage, topic: SeenTopic, topic_id: TopicId) -> int:
    counts = [max(topic.manifests.get(topic_id, ()), default=-1) + 1]
    if topic.state is not None and topic.state.topic_id == topic_id:
        counts.append(topic.state.partitions)
    known = snapshot.topics.get(topic_id)
    if known is not None:
        counts.append(len(known.partitions))
    return max(counts)


def least_epoch(snapshot: MetadataImage | None, topic_id: TopicId, partition: int) -> int:
    """The leader epoch that the snapshot knows; -1 if it does not know the partition."""
    known = snapshot.topics.get(topic_id) if snapshot is not None else None
    return known.partitions[partition].leader_epoch if known is not None and partition < len(known.partitions) else -1


def records(
    snapshot: MetadataImage | None,
    found: Inventory,
    claimed: Mapping[tuple[TopicId, int], Claimed],
    *,
    node_id: int,
) -> Iterator[pb.MetadataRecord]:
    """The records for a directory that has none of them yet. The last record says that the take-over is done."""
    before = snapshot or MetadataImage()
    for name, level in before.features.items():
        yield pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=name, level=level))
    broker = before.brokers.get(node_id)
    if broker is not None:
        yield pb.MetadataRecord(
            broker=pb.BrokerRecord(
                broker_id=node_id,
                broker_epoch=broker.broker_epoch + EPOCH_GAP,
                disk_identity=broker.disk_identity,
                endpoints=endpoint_records(broker.endpoints),
            )
        )
    # Broker processes that the take-over drops may be paused. They must not be mistaken for later registrations of their ids.
    known_epoch = max((each.broker_epoch for each in before.brokers.values()), default=0)
    floor = max(known_epoch, before.gone_broker_epoch) + EPOCH_GAP
    yield pb.MetadataRecord(gone_brokers=pb.GoneBrokersRecord(highest_epoch=floor))
    for topic in found.live:
        yield pb.MetadataRecord(topic=pb.TopicRecord(name=topic.name, topic_id=topic.topic_id))
        for number in range(topic.partitions):
            placed = _partition(before, topic.topic_id, number, claimed[topic.topic_id, number], node_id)
            yield pb.MetadataRecord(partition=partition_record(topic.topic_id, placed))
        resource = Resource(ResourceKind.TOPIC, topic.name)
        for key, value in topic.configs.items():
            yield pb.MetadataRecord(config=config_record(resource, key, value))
    for gone in found.doomed:
        doomed = pb.DeletingTopicRecord(name=gone.name, topic_id=gone.topic_id, partition_count=gone.partitions)
        yield pb.MetadataRecord(deleting_topic=doomed)
    if before.gone:
        yield pb.MetadataRecord(gone_topics=pb.GoneTopicsRecord(topic_ids=before.gone))
    for resource, values in before.configs.items():
        for key, value in values.items():
            if resource.kind is not ResourceKind.TOPIC:
                yield pb.MetadataRecord(config=config_record(resource, key, value))
    highest = max((each.producer_id + 1 for each in claimed.values()), default=0)
    first = max(before.next_producer_id, highest) + PRODUCER_ID_GAP
    yield pb.MetadataRecord(producer_id_block=pb.ProducerIdBlockRecord(broker_id=-1, first_producer_id=first, count=0))
    yield pb.MetadataRecord(take_over=pb.TakeOverRecord(done=True))


def _partition(before: MetadataImage, topic_id: TopicId, number: int, claimed: Claimed, node_id: int) -> PartitionImage:
    known = before.topics.get(topic_id)
    placed = known.partitions[number] if known is not None and number < len(known.partitions) else None
    leader_epoch = max(claimed.leader_epoch, placed.leader_epoch if placed is not None else 0, 0)
    partition_epoch = placed.partition_epoch if placed is not None else 0
    return PartitionImage(
        number, node_id, leader_epoch + EPOCH_GAP, partition_epoch + EPOCH_GAP, (node_id,), (node_id,)
    )
