"""The controller's decisions: each function turns a request and the current metadata into records, or raises a LogError.

Pure: no clock, no files, no randomness (a new topic's id is passed in). A plan is valid only for the image that it was made
from. `service.metadata.commands` plans whole commands with these functions.

The rules, their order and their wording follow Apache Kafka 4.2.1 (its ReplicationControlManager, compared request by request),
because clients and operators match on them. The caller handles authorisation, timeouts, and duplicates inside one request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from grpc_api.contract.topics import ConfigAlteration, NewTopic, Resource, ResourceKind
from service.metadata import features, placement
from service.metadata import records_pb2 as pb
from service.metadata.delta import folded_name
from service.metadata.image import MetadataImage
from service.metadata.internal_topics import COORDINATED_TOPICS
from service.metadata.parts import NO_LEADER, PartitionImage, TopicImage
from service.metadata.snapshot import config_record, partition_record, topic_files_record
from storage_tiers.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId
from storage_tiers.uuids import random_uuid

if TYPE_CHECKING:
    from storage_tiers.clock import Rng

MAX_TOPIC_NAME = 249
#: Kafka's bound on the partitions that one request may create.
MAX_PARTITIONS_PER_REQUEST = 10_000
PRODUCER_ID_BLOCK = 1000
#: Kafka's last id: ids are positive 63-bit numbers.
MAX_PRODUCER_ID = (1 << 63) - 1
#: Ids to skip when an unknown number may have been issued elsewhere.
PRODUCER_ID_GAP = 1 << 32

METADATA_TOPIC = "__cluster_metadata"
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

Records = tuple[pb.MetadataRecord, ...]


class TopicDefaults(Protocol):
    """The broker configs that planning reads (see `service.configs.values.BrokerConfigs`)."""

    @property
    def delete_topic_enable(self) -> bool: ...

    @property
    def num_partitions(self) -> int: ...

    @property
    def default_replication_factor(self) -> int: ...


class ConfigRules(Protocol):
    """The controller's configs, as planning needs them (`service.configs.resolve.Resolver`)."""

    @property
    def node_id(self) -> int: ...

    def check_new_topic(self, image: MetadataImage, configs: Mapping[str, str | None]) -> Mapping[str, str]: ...

    def broker(self, image: MetadataImage) -> TopicDefaults: ...

    def is_tiered(self, image: MetadataImage, topic: str) -> bool: ...

    def alter(
        self,
        image: MetadataImage,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        replace: bool = False,
        asked: int | None = None,
    ) -> tuple[pb.MetadataRecord, ...]: ...


class TopicPlan(NamedTuple):
    """`records` create the topic; the other fields are for the answer to CreateTopics."""

    records: Records
    topic_id: TopicId
    partitions: int
    replication_factor: int


class BlockPlan(NamedTuple):
    """Producer ids [first, first + size)."""

    records: Records
    first: int
    size: int


def new_topic_id(image: MetadataImage, rng: Rng) -> TopicId:
    """An unused topic id. As in Kafka it is neither of the two reserved ids, and its text has no leading dash."""
    while True:
        topic_id = TopicId(random_uuid(rng))
        reserved = int.from_bytes(topic_id, "big") <= 1
        if not (reserved or str(topic_id).startswith("-") or topic_id in image.topics or topic_id in image.deleting):
            return topic_id


def check_topic_name(name: str) -> None:
    """Raises InvalidTopic unless Kafka allows the name."""
    complaint = None
    if not name:
        complaint = "the empty string is not allowed"
    elif name in (".", ".."):
        complaint = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME:
        complaint = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME}"
    elif not _LEGAL_NAME.fullmatch(name):
        complaint = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if complaint is not None:
        raise InvalidTopic(f"Topic name is invalid: {complaint}")


def create_topic(
    image: MetadataImage, topic: NewTopic, configs: ConfigRules, topic_id: TopicId, *, validate_only: bool = False
) -> TopicPlan:
    """Plans a new topic. With `validate_only` the plan has no records. Raises InvalidTopic, TopicExists, InvalidConfig,
    InvalidRequest, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment or PolicyViolation, whichever applies
    first in Kafka's order."""
    if topic.name == METADATA_TOPIC:
        raise InvalidRequest(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    check_topic_name(topic.name)
    if topic.name in image.topic_ids:
        raise TopicExists(f"Topic '{topic.name}' already exists.")
    _check_collision(image, topic.name)
    if topic_id in image.topics or topic_id in image.deleting:
        raise InvalidRequest(f"The topic id {topic_id} is in use.")
    values = configs.check_new_topic(image, topic.configs)
    if topic.assignments:
        assignments = _manual_assignments(image, topic)
    else:
        assignments = _automatic_assignments(image, topic, configs, topic_id)
    if validate_only:  # a small request, often repeated, must not make the records of many partitions
        return TopicPlan((), topic_id, len(assignments), len(assignments[0]))
    records = [pb.MetadataRecord(topic=pb.TopicRecord(name=topic.name, topic_id=topic_id))]
    records += _new_partitions(image, topic_id, 0, assignments)
    resource = Resource(ResourceKind.TOPIC, topic.name)
    records += [pb.MetadataRecord(config=config_record(resource, key, value)) for key, value in values.items()]
    return TopicPlan(tuple(records), topic_id, len(assignments), len(assignments[0]))


def create_partitions(
    image: MetadataImage, name: str, count: int, assignments: Sequence[Sequence[int]] | None
) -> Records:
    """Returns the records that grow the topic to `count` partitions in total. `assignments` has the broker ids of each new
    partition. Raises UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment or PolicyViolation."""
    topic = _existing_topic(image, name)
    current = len(topic.partitions)
    if name in COORDINATED_TOPICS and count > current:
        raise InvalidPartitions(
            f"{name} keeps its {current} partition(s): their number decides which of them has a group or a "
            "transactional id, so with another number these would not be found."
        )
    if count == current:
        raise InvalidPartitions(f"Topic already has {current} partition(s).")
    if count < current:
        raise InvalidPartitions(
            f"The topic {name} currently has {current} partition(s); {count} would not be an increase."
        )
    added = count - current
    if added > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolation("Excessively large number of partitions per request.")
    if assignments is None:
        replication_factor = len(topic.partitions[0].own_replicas)
        placed = placement.place(list(image.brokers.values()), current, added, replication_factor, topic.topic_id)
        return tuple(_new_partitions(image, topic.topic_id, current, placed))
    if len(assignments) != added:
        raise InvalidReplicaAssignment(
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) were specified."
        )
    for partition, replicas in enumerate(assignments, current):
        _check_assignment(image, partition, replicas, len(topic.partitions[0].own_replicas))
    return tuple(_new_partitions(image, topic.topic_id, current, assignments))


def delete_topic(image: MetadataImage, name: str, configs: ConfigRules) -> tuple[Records, TopicImage]:
    """Returns the records that hide the topic and free its name, and the topic before its deletion. Raises
    UnknownTopicOrPartition or TopicDeletionDisabled."""
    if not configs.broker(image).delete_topic_enable:
        raise TopicDeletionDisabled("Topic deletion is disabled: delete.topic.enable is false.")
    topic = _existing_topic(image, name)
    return (pb.MetadataRecord(topic_deletion=pb.TopicDeletionRecord(topic_id=topic.topic_id)),), topic


def delete_topic_by_id(image: MetadataImage, topic_id: TopicId, configs: ConfigRules) -> tuple[Records, TopicImage]:
    """Does the same as `delete_topic`, by id. Raises UnknownTopicId if no live topic has that id."""
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopicId("This server does not host this topic ID.")
    return delete_topic(image, topic.name, configs)


def forget_topic(image: MetadataImage, topic_id: TopicId) -> Records:
    """Returns the records that forget a deleted topic once its data is gone. Returns none if it is already forgotten, so a
    retry is harmless."""
    if topic_id not in image.deleting:
        return ()
    return (pb.MetadataRecord(topic_forgotten=pb.TopicForgottenRecord(topic_id=topic_id)),)


def producer_id_block(image: MetadataImage, broker_id: int) -> BlockPlan:
    """Plans the broker's next block of producer ids (KIP-730). Its ids may be used only after the records are durable. Raises
    PolicyViolation if no ids are left."""
    first = image.next_producer_id
    if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
        raise PolicyViolation("All producer ids of this cluster are used up.")
    broker = image.brokers.get(broker_id)
    record = pb.ProducerIdBlockRecord(
        broker_id=broker_id,
        broker_epoch=-1 if broker is None else broker.broker_epoch,
        first_producer_id=first,
        count=PRODUCER_ID_BLOCK,
    )
    return BlockPlan((pb.MetadataRecord(producer_id_block=record),), first, PRODUCER_ID_BLOCK)


def skip_producer_ids(image: MetadataImage) -> Records:
    """Skips ids for a directory that may be an older copy. The original may have issued more ids since, and reusing one
    would turn another producer's first batch into a duplicate."""
    first = min(image.next_producer_id + PRODUCER_ID_GAP, MAX_PRODUCER_ID)
    block = pb.ProducerIdBlockRecord(broker_id=-1, broker_epoch=-1, first_producer_id=first, count=0)
    return (pb.MetadataRecord(producer_id_block=block),)


def topic_files_seen(image: MetadataImage, revisions: Mapping[TopicId, int]) -> Records:
    """Records the `topic.json` revisions that the bucket has shown, for live topics. Returns no records if all are known."""
    new = {
        topic_id: revision
        for topic_id, revision in revisions.items()
        if topic_id in image.topics and revision > image.topic_files.get(topic_id, 0)
    }
    return (pb.MetadataRecord(topic_files=topic_files_record(new)),) if new else ()


# --- starting ---------------------------------------------------------------------------------------------------------


def name_cluster(image: MetadataImage, cluster_id: str) -> Records:
    """The first record of an empty log; no records if the cluster already has this id."""
    if image.cluster_id == cluster_id:
        return ()
    return (pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=cluster_id)),)


def found_cluster(image: MetadataImage, cluster_id: str) -> Records:
    """Does the same as `name_cluster`, and sets every feature of the new cluster to its highest level."""
    named = name_cluster(image, cluster_id)
    return (*named, *features.newest()) if named else ()


def lead_everything(image: MetadataImage, broker_id: int) -> Records:
    """Makes a starting single node the leader of every partition whose replica on it is in sync, with the next leader epoch."""
    records = []
    for topic in image.topics.values():
        for partition in topic.partitions:
            if broker_id in partition.isr:
                change = pb.PartitionChangeRecord(topic_id=topic.topic_id, index=partition.index, leader=broker_id)
                records.append(pb.MetadataRecord(partition_change=change))
    return tuple(records)


def claim_incarnation(node_id: int, incarnation: int, start_id: bytes) -> Records:
    """Records a claim before `cluster.json` is swapped to `incarnation`. If the store's answer is lost, the node recognises its
    own claim by `start_id` (see `MetadataImage.unconfirmed_starts`)."""
    start = pb.StartRecord(node_id=node_id, incarnation=incarnation, start_id=start_id)
    return (pb.MetadataRecord(start=start),)


def confirm_incarnation(incarnation: int, start_id: bytes) -> Records:
    """Records that the bucket names this start as the holder."""
    return (pb.MetadataRecord(start_confirmed=pb.StartConfirmedRecord(incarnation=incarnation, start_id=start_id)),)


# --- parts ------------------------------------------------------------------------------------------------------------


def _existing_topic(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition("This server does not host this topic-partition.")
    return topic


def _check_collision(image: MetadataImage, name: str) -> None:
    """Refuses names that differ only in '.' and '_', which metric names do not distinguish (Kafka's reason)."""
    folded = folded_name(name)
    other = None if folded is None else image.folded_names.get(folded)
    if other is not None:
        raise InvalidTopic(f"Topic '{name}' collides with existing topic: {other}")


def _manual_assignments(image: MetadataImage, topic: NewTopic) -> Sequence[Sequence[int]]:
    if topic.replication_factor != -1:
        raise InvalidRequest("A manual partition assignment was specified, but replication factor was not set to -1.")
    if topic.partitions != -1:
        raise InvalidRequest("A manual partition assignment was specified, but numPartitions was not set to -1.")
    first_size = len(next(iter(topic.assignments.values())))
    for partition, replicas in topic.assignments.items():
        _check_assignment(image, partition, replicas, first_size)
    if sorted(topic.assignments) != list(range(len(topic.assignments))):
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    _check_size(len(topic.assignments))
    _check_replicas(first_size)
    return [topic.assignments[index] for index in range(len(topic.assignments))]


def _check_assignment(image: MetadataImage, partition: int, replicas: Sequence[int], size: int) -> None:
    if not replicas:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    for broker_id in sorted(replicas):
        if broker_id not in image.brokers:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if list(replicas).count(broker_id) > 1:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes the broker {broker_id} more than once."
            )
    if not any(image.brokers[broker_id].may_lead for broker_id in replicas):
        raise InvalidReplicaAssignment(
            "All brokers specified in the manual partition assignment for partition "
            f"{partition} are fenced or in controlled shutdown."
        )
    if len(replicas) != size:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {size} replica(s)."
        )


def _automatic_assignments(
    image: MetadataImage, topic: NewTopic, configs: ConfigRules, topic_id: TopicId
) -> Sequence[Sequence[int]]:
    if topic.partitions > MAX_PARTITIONS_PER_REQUEST:
        _check_size(topic.partitions)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
    if topic.partitions < -1 or topic.partitions == 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    count, factor = topic.partitions, topic.replication_factor
    count = configs.broker(image).num_partitions if count == -1 else count
    factor = configs.broker(image).default_replication_factor if factor == -1 else factor
    placed = placement.place(list(image.brokers.values()), 0, count, factor, topic_id)
    _check_replicas(factor)
    return placed


def _check_replicas(number: int) -> None:
    """Raises InvalidReplicationFactor for more replicas than a partition can have."""
    if number > 1:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {number} time(s): a partition has one replica here, and its history is as "
            "durable as the bucket; ask for a replication factor of 1."
        )


def _check_size(partitions: int) -> None:
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolation("Excessively large number of partitions per request.")


def _new_partitions(
    image: MetadataImage, topic_id: TopicId, first: int, assignments: Iterable[Sequence[int]]
) -> list[pb.MetadataRecord]:
    """Returns the records of new partitions from index `first` on. Each is led by its first replica that may lead. All replicas
    are in sync because all are empty."""
    forms: dict[tuple[int, ...], pb.MetadataRecord] = {}  # by replicas: a copy costs a tenth of a new record
    made = []
    for index, replicas in enumerate(map(tuple, assignments), first):
        form = forms.get(replicas)
        if form is None:
            form = pb.MetadataRecord(partition=partition_record(topic_id, _new_partition(image, index, replicas)))
            forms[replicas] = form
        record = pb.MetadataRecord()
        record.CopyFrom(form)
        record.partition.index = index
        made.append(record)
    return made


def _new_partition(image: MetadataImage, index: int, replicas: tuple[int, ...]) -> PartitionImage:
    brokers = [image.brokers[broker_id] for broker_id in replicas]
    leader = next((broker.broker_id for broker in brokers if broker.may_lead), NO_LEADER)
    return PartitionImage(index, leader, 0, 0, replicas, replicas, tuple(broker.disk_identity for broker in brokers))
