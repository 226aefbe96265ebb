"""Changes of the metadata as values, which a broker sends to its controller.

Pure. A command is plain data (no callable, no live object), so that it can be sent to another node and kept. `plan` looks up
the command's planner in the table `PLANNERS`. The planner takes an image and the command, and returns the records that make the
change and the result for the sender. Each command is a frozen class whose type parameter is its result. A command with
`validate_only` is planned like any other, but yields no records.

A plan is valid only for the image that it was made from, so the controller proposes it without awaiting anything in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from grpc_api.contract.features import FeatureUpdate
from grpc_api.contract.topics import ConfigAlteration, Endpoint, NewTopic, Resource
from service.metadata import features, planner, reassignments, registrations
from service.metadata.image import MetadataImage
from service.metadata.planner import ConfigRules, Records
from storage_tiers.types import TopicId

Result = TypeVar("Result")


class Command(Generic[Result]):
    """The base of all commands."""

    __slots__ = ()


class PlacedTopic(NamedTuple):
    """A topic as created."""

    topic_id: TopicId
    partitions: int
    replication_factor: int


class DeletedTopic(NamedTuple):
    """A topic before its deletion; `partitions` is the number of its partitions."""

    name: str
    topic_id: TopicId
    partitions: int


class ProducerIdBlock(NamedTuple):
    """Producer ids [first, first + size)."""

    first: int
    size: int


class LevelChange(NamedTuple):
    """A feature whose level changes."""

    feature: str
    from_level: int
    to_level: int


# --- commands of clients ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic(Command[PlacedTopic]):
    """Creates a topic. The sender chooses `topic_id` at random (`planner.new_topic_id`), so that a repeated command creates no
    second topic."""

    topic: NewTopic
    topic_id: TopicId
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic(Command[DeletedTopic]):
    """Deletes a topic. `topic` is its name or its id."""

    topic: str | TopicId


@dataclass(frozen=True, slots=True)
class CreatePartitions(Command[None]):
    """Grows the topic to `count` partitions in total. `assignments` has the broker ids of each new partition; with None the
    controller places them."""

    topic: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs(Command[None]):
    """Makes all alterations or none. With `replace`, configs that no alteration names return to their defaults. `asked` is the
    broker that received the request: as in Kafka, only the broker itself accepts changes of its own configs."""

    resource: Resource
    alterations: tuple[ConfigAlteration, ...]
    asked: int
    replace: bool = False
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdateFeatures(Command[tuple[LevelChange, ...]]):
    """Sets all levels or none. The result lists the levels that change."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


# --- commands of brokers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(Command[ProducerIdBlock]):
    """Reserves the broker's next block (KIP-730)."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class SkipProducerIds(Command[None]):
    """Skips ids when the directory may be an older copy, because the original may have issued them."""


@dataclass(frozen=True, slots=True)
class TopicFilesSeen(Command[None]):
    """Records the `topic.json` revisions that the bucket has shown."""

    revisions: Mapping[TopicId, int]


@dataclass(frozen=True, slots=True)
class ForgetTopic(Command[None]):
    """Forgets a deleted topic once its data is gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class ClaimIncarnation(Command[None]):
    """Records a claim before `cluster.json` is swapped to `incarnation`."""

    node_id: int
    incarnation: int
    start_id: bytes


@dataclass(frozen=True, slots=True)
class ConfirmIncarnation(Command[None]):
    """Records that the bucket names this start as the holder."""

    incarnation: int
    start_id: bytes


@dataclass(frozen=True, slots=True)
class FoundCluster(Command[None]):
    """Gives a new cluster its id and its feature levels. Does nothing if the cluster already has this id."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RegisterBroker(Command[int]):
    """Registers a starting broker; the result is its broker epoch. `endpoints` are its advertised listeners, `disk_identity` is
    its directory id, `start_id` names its process, and `peer` is the address at which other brokers reach it. The broker leads
    nothing while it is `fenced`."""

    broker_id: int
    disk_identity: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    start_id: bytes = b""
    fenced: bool = False
    peer: str = ""


@dataclass(frozen=True, slots=True)
class UnfenceBroker(Command[None]):
    """Unfences a registered broker, whose own image now has its registration. It may lead from then on."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class FenceBroker(Command[None]):
    """Fences a registered broker whose heartbeats have stopped."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ShutDownBroker(Command[None]):
    """Removes the leaderships of a registered broker that wants to stop."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Command[None]):
    """Removes a stopped broker from the cluster."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class LeadEverything(Command[None]):
    """Makes a starting single node the leader of every partition whose replica on it is in sync."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class ElectUnclean(Command[None]):
    """Elects a leader for a partition that has none, even if that leader lacks acknowledged records. If the partition has a
    leader that waits for the records below `moved_end`, that leader continues without them, under a new epoch."""

    topic: str
    partition: int
    moved_end: int = 0


@dataclass(frozen=True, slots=True)
class Reassign(Command[None]):
    """Begins the move of a partition to the brokers `replicas`; None cancels the move in progress (KIP-455)."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class HandOver(Command[None]):
    """Tells the controller that a partition's leader is ready to hand the partition over. The leader appends nothing more, and
    the bucket has everything below `end`, the leader's log end. The epochs are those under which the leader stopped."""

    topic_id: TopicId
    partition: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpoch(Command[None]):
    """Tells the controller that the log of a partition's replica has batches of the leader epoch `above`, which the metadata
    lacks because it was restored from an older copy. The partition's leader, if any, leads under a higher epoch from then
    on. Does nothing if the metadata has reached a higher epoch."""

    topic_id: TopicId
    partition: int
    broker_id: int
    broker_epoch: int
    above: int


# --- planning ---------------------------------------------------------------------------------------------------------

#: Takes an image, a command and the controller's configs; returns records and the command's result.
Planner = Callable[[MetadataImage, Any, ConfigRules], tuple[Records, Any]]


def plan(image: MetadataImage, command: Command[Result], configs: ConfigRules) -> tuple[Records, Result]:
    """Returns the records that carry out the command, and the command's result. Raises the command's LogError if it cannot be
    carried out."""
    records, result = PLANNERS[type(command)](image, command, configs)
    return (() if getattr(command, "validate_only", False) else records), result


def _create_topic(image: MetadataImage, command: CreateTopic, configs: ConfigRules) -> tuple[Records, PlacedTopic]:
    made = planner.create_topic(image, command.topic, configs, command.topic_id, validate_only=command.validate_only)
    return made.records, PlacedTopic(made.topic_id, made.partitions, made.replication_factor)


def _delete_topic(image: MetadataImage, command: DeleteTopic, configs: ConfigRules) -> tuple[Records, DeletedTopic]:
    if isinstance(command.topic, TopicId):
        records, topic = planner.delete_topic_by_id(image, command.topic, configs)
    else:
        records, topic = planner.delete_topic(image, command.topic, configs)
    return records, DeletedTopic(topic.name, topic.topic_id, len(topic.partitions))


def _alter_configs(image: MetadataImage, command: AlterConfigs, configs: ConfigRules) -> tuple[Records, None]:
    found = configs.alter(image, command.resource, command.alterations, replace=command.replace, asked=command.asked)
    return found, None


def _update_features(
    image: MetadataImage, command: UpdateFeatures, configs: ConfigRules
) -> tuple[Records, tuple[LevelChange, ...]]:
    records = features.update(image, command.updates, configs.node_id)
    levels = [each.feature_level for each in records]
    return records, tuple(LevelChange(each.name, features.current(image, each.name), each.level) for each in levels)


def _allocate_producer_ids(
    image: MetadataImage, command: AllocateProducerIds, _: ConfigRules
) -> tuple[Records, ProducerIdBlock]:
    block = planner.producer_id_block(image, command.broker_id)
    return block.records, ProducerIdBlock(block.first, block.size)


def _register_broker(image: MetadataImage, c: RegisterBroker, _: ConfigRules) -> tuple[Records, int]:
    return registrations.register(
        image, c.broker_id, c.disk_identity, c.endpoints, c.rack, start_id=c.start_id, fenced=c.fenced, peer=c.peer
    )


def _reassign(image: MetadataImage, c: Reassign, configs: ConfigRules) -> tuple[Records, None]:
    is_tiered = configs.is_tiered(image, c.topic)
    return reassignments.reassign(image, c.topic, c.partition, c.replicas, is_tiered=is_tiered), None


def _hand_over(image: MetadataImage, c: HandOver) -> Records:
    return reassignments.hand_over(
        image, c.topic_id, c.partition, c.broker_id, c.broker_epoch, c.leader_epoch, c.partition_epoch, c.end
    )


def _raise_leader_epoch(image: MetadataImage, c: RaiseLeaderEpoch) -> Records:
    return registrations.raise_leader_epoch(image, c.topic_id, c.partition, c.broker_id, c.broker_epoch, c.above)


def _without_result(make: Callable[[MetadataImage, Any], Records]) -> Planner:
    return lambda image, command, _: (make(image, command), None)


PLANNERS: Mapping[type[Command[Any]], Planner] = {
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    CreatePartitions: _without_result(
        lambda image, c: planner.create_partitions(image, c.topic, c.count, c.assignments)
    ),
    AlterConfigs: _alter_configs,
    UpdateFeatures: _update_features,
    AllocateProducerIds: _allocate_producer_ids,
    SkipProducerIds: _without_result(lambda image, _: planner.skip_producer_ids(image)),
    TopicFilesSeen: _without_result(lambda image, c: planner.topic_files_seen(image, c.revisions)),
    ForgetTopic: _without_result(lambda image, c: planner.forget_topic(image, c.topic_id)),
    ClaimIncarnation: _without_result(lambda _, c: planner.claim_incarnation(c.node_id, c.incarnation, c.start_id)),
    ConfirmIncarnation: _without_result(lambda _, c: planner.confirm_incarnation(c.incarnation, c.start_id)),
    FoundCluster: _without_result(lambda image, c: planner.found_cluster(image, c.cluster_id)),
    RegisterBroker: _register_broker,
    UnfenceBroker: _without_result(lambda image, c: registrations.unfence(image, c.broker_id, c.broker_epoch)),
    FenceBroker: _without_result(lambda image, c: registrations.fence(image, c.broker_id, c.broker_epoch)),
    ShutDownBroker: _without_result(lambda image, c: registrations.shut_down(image, c.broker_id, c.broker_epoch)),
    UnregisterBroker: _without_result(lambda image, c: registrations.unregister(image, c.broker_id)),
    ElectUnclean: _without_result(
        lambda image, c: registrations.elect_unclean(image, c.topic, c.partition, c.moved_end)
    ),
    Reassign: _reassign,
    HandOver: _without_result(_hand_over),
    RaiseLeaderEpoch: _without_result(_raise_leader_epoch),
    LeadEverything: _without_result(lambda image, c: planner.lead_everything(image, c.broker_id)),
}
