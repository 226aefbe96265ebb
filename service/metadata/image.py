"""The cluster's metadata as one immutable value, and the only function that changes it.

`image.apply_batch(records)` returns a new image and leaves the old one unchanged, so a request or planner that holds an image
sees one consistent state. Images share unchanged parts. Within one batch every touched dictionary is copied once, so a start
that re-elects 10,000 partitions costs one copy, not 10,000.

Invariants: applying is a pure function of (image, records): no clock, no randomness, no configuration. A batch applies
whole or raises MetadataCorrupt and leaves nothing. A topic id is live or deleting or unknown, never two of these. Leader
epochs, partition epochs and producer ids only rise.

Not promised: the meaning of requests, which the planner handles; durability, which the log provides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from grpc_api.contract.topics import Endpoint, Resource, ResourceKind
from service.metadata import records_pb2 as pb
from storage_tiers.errors import MetadataCorrupt
from storage_tiers.types import TopicId

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


def _empty() -> Mapping[Any, Any]:
    return _EMPTY


#: Number of completely deleted topics whose ids are kept; only the bucket knows older ones.
MAX_GONE_TOPICS = 4096
#: Number of this node's starts with an unanswered claim in the bucket that are kept; older ones are dropped.
MAX_UNCONFIRMED_STARTS = 1024


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. `leader` is a broker id, -1 for none; `replicas` and `isr` are broker ids."""

    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A live topic. `partitions[i].index == i`."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletingTopic:
    """A deleted topic, hidden from clients, whose data is still being removed."""

    name: str
    topic_id: TopicId
    partition_count: int


class SupportedFeature(NamedTuple):
    """The levels of a feature that a broker has registered, both bounds included."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. `endpoints` are its advertised listeners; `disk_identity` is its directory id; `features` are those
    that it supports at a level above 0."""

    broker_id: int
    broker_epoch: int
    disk_identity: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    features: tuple[SupportedFeature, ...] = ()


@dataclass(frozen=True, slots=True)
class StartImage:
    """A node start that claims, or holds, the incarnation in the bucket."""

    node_id: int
    incarnation: int
    start_id: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a batch of records: ids of topics (created, changed, being deleted or gone), and resources whose configs
    were set. Each once, in the order touched. Publishers of the metadata apply only these."""

    topics: tuple[TopicId, ...] = ()
    configs: tuple[Resource, ...] = ()

    @classmethod
    def joined(cls, several: Iterable[Changes]) -> Changes:
        topics: dict[TopicId, None] = {}
        configs: dict[Resource, None] = {}
        for changes in several:
            topics.update(dict.fromkeys(changes.topics))
            configs.update(dict.fromkeys(changes.configs))
        return cls(tuple(topics), tuple(configs))


@dataclass(frozen=True, slots=True)
class TakeOverImage:
    """A take-over in progress, with the content of `cluster.json` when it started."""

    incarnation: int
    start_id: str


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata after one batch. Its dictionaries are read-only; `apply_batch` returns the next image.

    `topics` is by id, `topic_ids` by name. `incarnation` is the number that the bucket last confirmed for this node, 0 before
    the first; `unconfirmed_starts` are the claims made since, oldest first. `changes` is what the last batch touched.
    """

    cluster_id: str = ""
    topics: Mapping[TopicId, TopicImage] = field(default_factory=_empty)
    topic_ids: Mapping[str, TopicId] = field(default_factory=_empty)
    deleting: Mapping[TopicId, DeletingTopic] = field(default_factory=_empty)
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=_empty)
    brokers: Mapping[int, BrokerImage] = field(default_factory=_empty)
    features: Mapping[str, int] = field(default_factory=_empty)
    next_producer_id: int = 0
    incarnation: int = 0
    start_id: bytes = b""
    unconfirmed_starts: tuple[StartImage, ...] = ()
    #: The revision of `topic.json` that the bucket last showed, for live topics.
    topic_files: Mapping[TopicId, int] = field(default_factory=_empty)
    #: Ids of completely deleted topics, the newest last.
    gone: tuple[TopicId, ...] = ()
    #: Set while a take-over runs; until it is done, the rest of the image is incomplete.
    take_over: TakeOverImage | None = None
    changes: Changes = field(default=Changes(), compare=False)

    def topic(self, name: str) -> TopicImage | None:
        """The live topic of that name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """The live topic of that id."""
        return self.topics.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        topic = self.topic(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def config(self, kind: ResourceKind, name: str) -> Mapping[str, str]:
        """The dynamic configs of that resource; empty if there are none."""
        return self.configs.get(Resource(kind, name), _EMPTY)

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.config(ResourceKind.TOPIC, name)

    def broker_config(self, node_id: int | None) -> Mapping[str, str]:
        """The dynamic configs of one broker, or with None the default of all brokers."""
        return self.config(ResourceKind.BROKER, "" if node_id is None else str(node_id))

    def apply(self, record: pb.MetadataRecord) -> MetadataImage:
        return self.apply_batch((record,))

    def apply_batch(self, records: Iterable[pb.MetadataRecord]) -> MetadataImage:
        """The image after all of `records`. MetadataCorrupt if one of them does not match the state."""
        delta = _Delta(self)
        for record in records:
            delta.apply(record)
        return delta.image()

    def __repr__(self) -> str:
        partitions = sum(len(topic.partitions) for topic in self.topics.values())
        return (
            f"MetadataImage(cluster {self.cluster_id!r}, {len(self.topics)} topics, {partitions} partitions, "
            f"{len(self.deleting)} deleting, {len(self.brokers)} brokers, next producer id {self.next_producer_id})"
        )


class _Delta:
    """The changes of one batch. A dictionary, or a topic's partitions, is copied when first touched."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._changed: dict[str, Any] = {}
        self._partitions: dict[TopicId, list[PartitionImage]] = {}
        self._owned_configs: set[Resource] = set()
        self._touched: dict[TopicId, None] = {}
        self._configured: dict[Resource, None] = {}

    def apply(self, record: pb.MetadataRecord) -> None:
        kind = record.WhichOneof("kind")
        if kind is None:
            raise MetadataCorrupt(
                "a metadata record of a kind that this version does not know; start the version that wrote it, or newer"
            )
        getattr(self, "_" + kind)(getattr(record, kind))

    def image(self) -> MetadataImage:
        for topic_id, partitions in self._partitions.items():
            topics = self._writable("topics")
            topics[topic_id] = replace(topics[topic_id], partitions=tuple(partitions))
        changes = Changes(tuple(self._touched), tuple(self._configured))
        return replace(self._base, **self._changed, changes=changes)

    def _writable(self, name: str) -> dict[Any, Any]:
        if name not in self._changed:
            self._changed[name] = dict(getattr(self._base, name))
        mapping: dict[Any, Any] = self._changed[name]
        return mapping

    def _current(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._base, name)

    def _id(self, raw: bytes) -> TopicId:
        """The topic id in a record, noted as touched. MetadataCorrupt if it is not 16 bytes."""
        if len(raw) != 16:
            raise MetadataCorrupt(f"a metadata record holds a topic id of {len(raw)} bytes; it must have 16")
        topic_id = TopicId(raw)
        self._touched[topic_id] = None
        return topic_id

    def _live(self, topic_id: TopicId) -> TopicImage:
        topic: TopicImage | None = self._current("topics").get(topic_id)
        if topic is None:
            raise MetadataCorrupt(f"a metadata record names the topic id {topic_id}, which is not live")
        return topic

    def _topic_partitions(self, topic_id: TopicId) -> list[PartitionImage]:
        partitions = self._partitions.get(topic_id)
        if partitions is None:
            partitions = self._partitions[topic_id] = list(self._live(topic_id).partitions)
        return partitions

    # --- one method for each record kind, named after the field of MetadataRecord ---------------------------------

    def _topic(self, record: pb.TopicRecord) -> None:
        topic_id = self._id(record.topic_id)
        if record.name in self._current("topic_ids"):
            raise MetadataCorrupt(f"the metadata creates the topic {record.name!r}, which exists already")
        if topic_id in self._current("topics") or topic_id in self._current("deleting"):
            raise MetadataCorrupt(f"the metadata gives the topic id {topic_id} to a second topic, {record.name!r}")
        self._writable("topics")[topic_id] = TopicImage(record.name, topic_id)
        self._writable("topic_ids")[record.name] = topic_id

    def _partition(self, record: pb.PartitionRecord) -> None:
        topic_id = self._id(record.topic_id)
        partitions = self._topic_partitions(topic_id)
        image = PartitionImage(
            record.index,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.replicas),
            tuple(record.isr),
        )
        if record.index == len(partitions):
            partitions.append(image)
        elif 0 <= record.index < len(partitions):
            partitions[record.index] = image
        else:
            raise MetadataCorrupt(
                f"a metadata record makes partition {record.index} of the topic id {topic_id}, "
                f"which has {len(partitions)} partitions"
            )

    def _partition_change(self, record: pb.PartitionChangeRecord) -> None:
        topic_id = self._id(record.topic_id)
        partitions = self._topic_partitions(topic_id)
        if not 0 <= record.index < len(partitions):
            raise MetadataCorrupt(
                f"a metadata record changes partition {record.index} of the topic id {topic_id}, "
                f"which has {len(partitions)} partitions"
            )
        old = partitions[record.index]
        elected = record.HasField("leader")
        partitions[record.index] = PartitionImage(
            old.index,
            record.leader if elected else old.leader,
            old.leader_epoch + elected,
            old.partition_epoch + 1,
            tuple(record.replicas.nodes) if record.HasField("replicas") else old.replicas,
            tuple(record.isr.nodes) if record.HasField("isr") else old.isr,
        )

    def _topic_deletion(self, record: pb.TopicDeletionRecord) -> None:
        topic_id = self._id(record.topic_id)
        topic = self._live(topic_id)
        count = len(self._partitions.pop(topic_id, topic.partitions))
        del self._writable("topics")[topic_id]
        del self._writable("topic_ids")[topic.name]
        if topic_id in self._current("topic_files"):
            del self._writable("topic_files")[topic_id]
        configured = Resource(ResourceKind.TOPIC, topic.name)
        if configured in self._current("configs"):
            del self._writable("configs")[configured]
            self._owned_configs.discard(configured)
        self._writable("deleting")[topic_id] = DeletingTopic(topic.name, topic_id, count)

    def _topic_forgotten(self, record: pb.TopicForgottenRecord) -> None:
        topic_id = self._id(record.topic_id)
        if self._writable("deleting").pop(topic_id, None) is None:
            raise MetadataCorrupt(f"the metadata forgets the topic id {topic_id}, which is not being deleted")
        self._changed["gone"] = (*self._current("gone"), topic_id)[-MAX_GONE_TOPICS:]

    def _gone_topics(self, record: pb.GoneTopicsRecord) -> None:
        self._changed["gone"] = tuple(map(TopicId, record.topic_ids))[-MAX_GONE_TOPICS:]

    def _topic_files(self, record: pb.TopicFilesRecord) -> None:
        live, known = self._current("topics"), self._writable("topic_files")
        for seen in record.files:
            topic_id = TopicId(seen.topic_id)
            if topic_id in live:
                known[topic_id] = max(seen.revision, known.get(topic_id, 0))

    def _deleting_topic(self, record: pb.DeletingTopicRecord) -> None:
        topic_id = self._id(record.topic_id)
        self._writable("deleting")[topic_id] = DeletingTopic(record.name, topic_id, record.partition_count)

    def _config(self, record: pb.ConfigRecord) -> None:
        try:
            resource = Resource(ResourceKind(record.resource_kind), record.resource_name)
        except ValueError:
            raise MetadataCorrupt(
                f"a metadata record configures a resource of the unknown kind {record.resource_kind}"
            ) from None
        self._configured[resource] = None
        configs = self._writable("configs")
        if resource not in self._owned_configs:
            configs[resource] = dict(configs.get(resource, _EMPTY))
            self._owned_configs.add(resource)
        values = configs[resource]
        if record.HasField("value"):
            values[record.key] = record.value
        else:
            values.pop(record.key, None)
        if not values:
            del configs[resource]
            self._owned_configs.discard(resource)

    def _broker(self, record: pb.BrokerRecord) -> None:
        known = self._current("brokers").get(record.broker_id)
        if known is not None and record.broker_epoch <= known.broker_epoch:
            raise MetadataCorrupt(
                f"the metadata registers broker {record.broker_id} with epoch {record.broker_epoch}, "
                f"not above its last, {known.broker_epoch}"
            )
        self._writable("brokers")[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.disk_identity,
            tuple(Endpoint(each.listener, each.host, each.port) for each in record.endpoints),
            record.rack if record.HasField("rack") else None,
            tuple(SupportedFeature(each.name, each.lowest, each.highest) for each in record.features),
        )

    def _producer_id_block(self, record: pb.ProducerIdBlockRecord) -> None:
        next_id = self._current("next_producer_id")
        if record.first_producer_id < next_id or record.count < 0:
            raise MetadataCorrupt(
                f"the metadata gives out producer id {record.first_producer_id} again; the next one is {next_id}"
            )
        self._changed["next_producer_id"] = record.first_producer_id + record.count

    def _feature_level(self, record: pb.FeatureLevelRecord) -> None:
        features = self._writable("features")
        if record.level:
            features[record.name] = record.level
        else:
            features.pop(record.name, None)

    def _cluster(self, record: pb.ClusterRecord) -> None:
        known = self._current("cluster_id")
        if known and known != record.cluster_id:
            raise MetadataCorrupt(f"the metadata of the cluster {known} names another cluster, {record.cluster_id}")
        self._changed["cluster_id"] = record.cluster_id

    def _start(self, record: pb.StartRecord) -> None:
        start = StartImage(record.node_id, record.incarnation, record.start_id)
        starts = (*self._current("unconfirmed_starts"), start)
        self._changed["unconfirmed_starts"] = starts[-MAX_UNCONFIRMED_STARTS:]

    def _take_over(self, record: pb.TakeOverRecord) -> None:
        self._changed["take_over"] = None if record.done else TakeOverImage(record.incarnation, record.start_id)

    def _start_confirmed(self, record: pb.StartConfirmedRecord) -> None:
        if record.incarnation < self._current("incarnation"):
            raise MetadataCorrupt(
                f"the metadata confirms incarnation {record.incarnation} after {self._current('incarnation')}"
            )
        self._changed["incarnation"] = record.incarnation
        self._changed["start_id"] = record.start_id
        self._changed["unconfirmed_starts"] = ()


def to_records(image: MetadataImage) -> Iterator[pb.MetadataRecord]:
    """Records that turn an empty image into `image`: the content of a snapshot."""
    if image.cluster_id:
        yield pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=image.cluster_id))
    for name, level in image.features.items():
        yield pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=name, level=level))
    for broker in image.brokers.values():
        yield pb.MetadataRecord(
            broker=pb.BrokerRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                disk_identity=broker.disk_identity,
                endpoints=endpoint_records(broker.endpoints),
                rack=broker.rack,
                features=[pb.SupportedFeatureRecord(**each._asdict()) for each in broker.features],
            )
        )
    for topic in image.topics.values():
        yield pb.MetadataRecord(topic=pb.TopicRecord(name=topic.name, topic_id=topic.topic_id))
        for partition in topic.partitions:
            yield pb.MetadataRecord(partition=partition_record(topic.topic_id, partition))
    for gone in image.deleting.values():
        yield pb.MetadataRecord(
            deleting_topic=pb.DeletingTopicRecord(
                name=gone.name, topic_id=gone.topic_id, partition_count=gone.partition_count
            )
        )
    if image.topic_files:
        yield pb.MetadataRecord(topic_files=topic_files_record(image.topic_files))
    if image.gone:
        yield pb.MetadataRecord(gone_topics=pb.GoneTopicsRecord(topic_ids=image.gone))
    for resource, values in image.configs.items():
        for key, value in values.items():
            yield pb.MetadataRecord(config=config_record(resource, key, value))
    if image.next_producer_id:
        block = pb.ProducerIdBlockRecord(broker_id=-1, broker_epoch=-1, first_producer_id=image.next_producer_id)
        yield pb.MetadataRecord(producer_id_block=block)
    yield from _start_records(image)


def _start_records(image: MetadataImage) -> Iterator[pb.MetadataRecord]:
    if image.take_over is not None:
        begun = pb.TakeOverRecord(incarnation=image.take_over.incarnation, start_id=image.take_over.start_id)
        yield pb.MetadataRecord(take_over=begun)
    if image.incarnation:
        confirmed = pb.StartConfirmedRecord(incarnation=image.incarnation, start_id=image.start_id)
        yield pb.MetadataRecord(start_confirmed=confirmed)
    for start in image.unconfirmed_starts:
        yield pb.MetadataRecord(
            start=pb.StartRecord(node_id=start.node_id, incarnation=start.incarnation, start_id=start.start_id)
        )


def endpoint_records(endpoints: Iterable[Endpoint]) -> list[pb.EndpointRecord]:
    return [pb.EndpointRecord(listener=each.listener, host=each.host, port=each.port) for each in endpoints]


def topic_files_record(revisions: Mapping[TopicId, int]) -> pb.TopicFilesRecord:
    """The record of `topic.json` revisions by topic id."""
    files = (pb.TopicFileSeen(topic_id=topic_id, revision=revision) for topic_id, revision in revisions.items())
    return pb.TopicFilesRecord(files=files)


def partition_record(topic_id: TopicId, partition: PartitionImage) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=topic_id,
        index=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
    )


def config_record(resource: Resource, key: str, value: str | None) -> pb.ConfigRecord:
    """`value` None: back to the default."""
    return pb.ConfigRecord(resource_kind=resource.kind, resource_name=resource.name, key=key, value=value)
