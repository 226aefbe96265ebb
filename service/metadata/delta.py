"""The effect of one batch of metadata records on an image: one method for each kind of record.

Pure. A record states a fact, so applying it computes nothing that could differ between nodes.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from grpc_api.contract.topics import Endpoint, Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.history import with_term
from service.metadata.parts import (
    BrokerImage,
    Changes,
    DeletingTopic,
    PartitionImage,
    SessionImage,
    StartImage,
    SupportedFeature,
    TakeOverImage,
    TermStart,
    TopicImage,
)
from storage_tiers.errors import MetadataCorrupt
from storage_tiers.types import TopicId

#: Most ids of completely deleted topics that are kept; only the bucket knows older ones.
MAX_GONE_TOPICS = 4096
#: Most unconfirmed starts of this node that are kept (the bucket has not answered their claims); older ones are dropped.
MAX_UNCONFIRMED_STARTS = 1024
#: Fields of the image that grow with the topics.
_TRIES = frozenset({"topics", "topic_ids", "folded_names", "configs", "topic_files"})
_ReplicaList = Literal["isr", "replicas", "adding", "removing", "eligible_leaders", "last_known_leaders"]
#: Fields of a partition's change that are lists of broker ids.
_REPLICA_LISTS: tuple[_ReplicaList, ...] = (
    "isr",
    "replicas",
    "adding",
    "removing",
    "eligible_leaders",
    "last_known_leaders",
)
_EMPTY: MappingProxyType[str, str] = MappingProxyType({})


def folded_name(name: str) -> str | None:
    """The topic's name in metrics, which do not distinguish '.' and '_'; None if it has neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None


class Delta:
    """The changes of one batch to the image `base`. A topic's partitions are copied when first touched."""

    def __init__(self, base: object) -> None:
        self._base = base
        self._changed: dict[str, Any] = {}
        self._partitions: dict[TopicId, list[PartitionImage]] = {}
        self._owned_configs: set[Resource] = set()
        self._touched: dict[TopicId, None] = {}
        self._configured: dict[Resource, None] = {}
        self._registered: dict[int, None] = {}

    def apply(self, record: pb.MetadataRecord) -> None:
        kind = record.WhichOneof("kind")
        if kind is None:
            raise MetadataCorrupt(
                "a metadata record of a kind that this version does not know; start the version that wrote it, or newer"
            )
        getattr(self, "_" + kind)(getattr(record, kind))

    def changed(self) -> dict[str, Any]:
        """The fields of the image that differ from the base's."""
        for topic_id, partitions in self._partitions.items():
            topics = self._writable("topics")
            topics[topic_id] = replace(topics[topic_id], partitions=tuple(partitions))
        finished = {name: value.finish() if name in _TRIES else value for name, value in self._changed.items()}
        return finished | {"changes": Changes(tuple(self._touched), tuple(self._configured), tuple(self._registered))}

    def _writable(self, name: str) -> Any:
        """A mapping of the image that this batch may change."""
        if name not in self._changed:
            base = getattr(self._base, name)
            self._changed[name] = base.mutate() if name in _TRIES else dict(base)
        return self._changed[name]

    def _current(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._base, name)

    def _id(self, raw: bytes) -> TopicId:
        """Returns the topic id in a record, and notes the topic as touched. Raises MetadataCorrupt if the id is not 16
        bytes."""
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
        if (folded := folded_name(record.name)) is not None:
            self._writable("folded_names")[folded] = record.name

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
            tuple(record.directories),
            tuple(record.adding),
            tuple(record.removing),
            tuple(record.eligible_leaders),
            tuple(record.last_known_leaders),
            record.recovering,
            record.moved_end,
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
        given: dict[str, Any] = {
            name: tuple(getattr(record, name).nodes) for name in _REPLICA_LISTS if record.HasField(name)
        }
        if record.HasField("directories"):
            given["directories"] = tuple(record.directories.ids)
        if record.HasField("recovering"):
            given["recovering"] = record.recovering
        if record.HasField("moved_end"):
            given["moved_end"] = record.moved_end
        partitions[record.index] = replace(
            old,
            leader=record.leader if elected else old.leader,
            leader_epoch=old.leader_epoch + elected,
            partition_epoch=old.partition_epoch + 1,
            **given,
        )

    def _topic_deletion(self, record: pb.TopicDeletionRecord) -> None:
        topic_id = self._id(record.topic_id)
        topic = self._live(topic_id)
        count = len(self._partitions.pop(topic_id, topic.partitions))
        del self._writable("topics")[topic_id]
        del self._writable("topic_ids")[topic.name]
        if (folded := folded_name(topic.name)) is not None:
            self._writable("folded_names").pop(folded, None)
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
        self._registered[record.broker_id] = None
        self._writable("brokers")[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.disk_identity,
            tuple(Endpoint(each.listener, each.host, each.port) for each in record.endpoints),
            record.rack if record.HasField("rack") else None,
            tuple(SupportedFeature(each.name, each.lowest, each.highest) for each in record.features),
            record.start_id,
            record.fenced,
            record.shutting_down,
            record.peer,
        )
        if record.broker_id in self._current("sessions"):
            del self._writable("sessions")[record.broker_id]

    def _broker_change(self, record: pb.BrokerChangeRecord) -> None:
        known = self._registration(record.broker_id, record.broker_epoch)
        self._registered[record.broker_id] = None
        self._writable("brokers")[record.broker_id] = replace(
            known,
            fenced=record.fenced if record.HasField("fenced") else known.fenced,
            shutting_down=record.shutting_down if record.HasField("shutting_down") else known.shutting_down,
        )

    def _broker_unregistration(self, record: pb.BrokerUnregistrationRecord) -> None:
        self._registration(record.broker_id, record.broker_epoch)
        self._registered[record.broker_id] = None
        del self._writable("brokers")[record.broker_id]
        self._changed["gone_broker_epoch"] = max(self._current("gone_broker_epoch"), record.broker_epoch)
        if record.broker_id in self._current("sessions"):
            del self._writable("sessions")[record.broker_id]

    def _gone_brokers(self, record: pb.GoneBrokersRecord) -> None:
        self._changed["gone_broker_epoch"] = record.highest_epoch

    def _registration(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        known: BrokerImage | None = self._current("brokers").get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            raise MetadataCorrupt(
                f"the metadata changes broker {broker_id} of epoch {broker_epoch}, which is not its registration"
            )
        return known

    def _command(self, record: pb.CommandRecord) -> None:
        self._registration(record.broker_id, record.broker_epoch)
        known: SessionImage | None = self._current("sessions").get(record.broker_id)
        kept = {} if known is None else known.results
        results = {number: result for number, result in kept.items() if number >= record.answered_below}
        results[record.sequence] = record.result
        self._writable("sessions")[record.broker_id] = SessionImage(
            record.broker_epoch, max(record.answered_below, 0 if known is None else known.answered_below), results
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

    def _term(self, record: pb.TermRecord) -> None:
        terms = self._current("terms")
        if terms and (record.term <= terms[-1].term or record.offset <= terms[-1].offset):
            raise MetadataCorrupt(f"the metadata begins term {record.term} at {record.offset} after {terms[-1]}")
        self._changed["terms"] = with_term(terms, TermStart(record.term, record.offset))

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
