"""Encodes commands and their results for the network, and results of completed commands for the metadata log.

Pure. Each class of `service.metadata.commands` has a pair of functions in one table. Decoding returns a value equal to the
encoded one. A command that this version does not know is refused with an error that names the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, NamedTuple, cast

from google.protobuf.message import DecodeError

from grpc_api.contract.features import FeatureChange, FeatureUpdate
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Endpoint, NewTopic, Resource, ResourceKind
from service.metadata import commands as c
from service.metadata import commands_pb2 as pb
from service.metadata.planner import MAX_PARTITIONS_PER_REQUEST
from service.metadata.records_pb2 import EndpointRecord, ReplicaList, TopicFilesRecord
from service.metadata.registrations import MAX_BROKERS
from service.metadata.snapshot import endpoint_records, topic_files_record
from storage_tiers.errors import InvalidReplicaAssignment, InvalidRequest, PolicyViolation
from storage_tiers.types import TopicId

#: Most configs that one command sets. A resource has fewer keys, and a command may set each key only once.
MAX_CONFIGS = 1_000
#: Most topics of one TopicFilesSeen.
MAX_TOPIC_FILES = 2_000
#: Commands that brokers of other processes send. Only the controller's own process sends the others.
_OF_BROKERS = frozenset(
    {
        "create_topic",
        "delete_topic",
        "create_partitions",
        "alter_configs",
        "update_features",
        "allocate_producer_ids",
        "topic_files_seen",
        "forget_topic",
        "unregister_broker",
        "elect_unclean",
        "reassign",
        "hand_over",
        "raise_leader_epoch",
    }
)


class _Form(NamedTuple):
    """A command's field in the message `Command`, and the functions that convert between the message and the class."""

    field: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], c.Command[Any]]


def encode_command(command: c.Command[Any]) -> bytes:
    form = _FORMS[type(command)]
    return pb.Command(**{form.field: form.encode(command)}).SerializeToString()


def decode_command(encoded: bytes, *, of_broker: int | None = None) -> c.Command[Any]:
    """Raises InvalidRequest if the bytes are not a command, or are a command of another version. With `of_broker`, the id of a
    sender in another process, also raises it for a command that brokers must not send, or that is in another broker's name.
    Raises InvalidRequest, InvalidReplicaAssignment or PolicyViolation for more rows than any accepted command has."""
    try:
        message = pb.Command.FromString(encoded)
        kind = message.WhichOneof("kind")
        if kind is not None:
            if of_broker is not None and kind not in _OF_BROKERS:
                raise InvalidRequest(
                    f"the command {kind} of broker {of_broker}: only the controller's own process may send it"
                )
            command = _DECODERS[kind](getattr(message, kind))
            if of_broker is not None:
                _check_name(command, of_broker)
            return command
    except (DecodeError, ValueError) as error:
        raise InvalidRequest(f"the command cannot be decoded ({error}); send one of `commands.proto`") from error
    raise InvalidRequest("a command that this controller does not know; upgrade the controller before its brokers")


def encode_result(result: object) -> bytes:
    return _result_message(result).SerializeToString()


def decode_result(encoded: bytes) -> Any:
    message = pb.Result.FromString(encoded)
    match message.WhichOneof("kind"):
        case "placed_topic":
            placed = message.placed_topic
            return c.PlacedTopic(TopicId(placed.topic_id), placed.partitions, placed.replication_factor)
        case "deleted_topic":
            gone = message.deleted_topic
            return c.DeletedTopic(gone.name, TopicId(gone.topic_id), gone.partitions)
        case "producer_id_block":
            return c.ProducerIdBlock(message.producer_id_block.first, message.producer_id_block.size)
        case "level_changes":
            found = message.level_changes.changes
            return tuple(c.LevelChange(each.feature, each.from_level, each.to_level) for each in found)
        case "number":
            return message.number
    return None


def _result_message(result: object) -> pb.Result:
    match result:
        case None:
            return pb.Result()
        case c.PlacedTopic():
            return pb.Result(placed_topic=pb.PlacedTopic(**result._asdict()))
        case c.DeletedTopic():
            return pb.Result(deleted_topic=pb.DeletedTopic(**result._asdict()))
        case c.ProducerIdBlock():
            return pb.Result(producer_id_block=pb.ProducerIdBlock(**result._asdict()))
        case int():
            return pb.Result(number=result)
        case tuple():
            changes = [pb.LevelChange(**cast("c.LevelChange", each)._asdict()) for each in result]
            return pb.Result(level_changes=pb.LevelChanges(changes=changes))
    raise TypeError(f"no command has a result of {type(result)}")


def _check_name(command: c.Command[Any], broker_id: int) -> None:
    """Raises InvalidRequest if the command of that broker is in another broker's name."""
    match command:
        case c.AllocateProducerIds() | c.HandOver() | c.RaiseLeaderEpoch():
            named = command.broker_id
        case c.AlterConfigs():
            named = command.asked
        case _:
            return
    if named != broker_id:
        raise InvalidRequest(f"a command of broker {broker_id} in the name of broker {named}")


# --- commands ---------------------------------------------------------------------------------------------------------
def _nodes(message: ReplicaList) -> tuple[int, ...]:
    if len(message.nodes) > MAX_BROKERS:
        raise InvalidReplicaAssignment(
            f"{len(message.nodes)} replicas of one partition: a cluster has at most {MAX_BROKERS} brokers"
        )
    return tuple(message.nodes)


def _check_rows(rows: Sized, most: int, kind: str) -> None:
    if len(rows) > most:
        raise InvalidRequest(f"{len(rows)} {kind} in one command, and {most} is the maximum: send smaller requests")


def _check_partitions(rows: Sized) -> None:
    """Raises PolicyViolation, with Kafka's message, for more than MAX_PARTITIONS_PER_REQUEST rows."""
    if len(rows) > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolation("Excessively large number of partitions per request.")


def _lists(assignments: Iterable[Iterable[int]]) -> list[ReplicaList]:
    return [ReplicaList(nodes=nodes) for nodes in assignments]


def _encode_create_topic(command: c.CreateTopic) -> pb.CreateTopic:
    topic = command.topic
    new = pb.NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[pb.NamedValue(name=name, value=value) for name, value in topic.configs.items()],
        assignments={partition: ReplicaList(nodes=nodes) for partition, nodes in topic.assignments.items()},
    )
    return pb.CreateTopic(topic=new, topic_id=command.topic_id, validate_only=command.validate_only)


def _decode_create_topic(message: pb.CreateTopic) -> c.CreateTopic:
    new = message.topic
    _check_rows(new.configs, MAX_CONFIGS, "configs")
    _check_partitions(new.assignments)
    topic = NewTopic(
        new.name,
        new.partitions,
        new.replication_factor,
        {each.name: each.value if each.HasField("value") else None for each in new.configs},
        {partition: _nodes(new.assignments[partition]) for partition in sorted(new.assignments)},
    )
    return c.CreateTopic(topic, _topic_id(message.topic_id), message.validate_only)


def _encode_delete_topic(command: c.DeleteTopic) -> pb.DeleteTopic:
    topic = command.topic
    return pb.DeleteTopic(id=topic) if isinstance(topic, TopicId) else pb.DeleteTopic(name=topic)


def _decode_delete_topic(message: pb.DeleteTopic) -> c.DeleteTopic:
    return c.DeleteTopic(_topic_id(message.id) if message.HasField("id") else message.name)


def _encode_create_partitions(command: c.CreatePartitions) -> pb.CreatePartitions:
    given = command.assignments
    return pb.CreatePartitions(
        topic=command.topic,
        count=command.count,
        assignments=None if given is None else pb.Assignments(partitions=_lists(given)),
        validate_only=command.validate_only,
    )


def _decode_create_partitions(message: pb.CreatePartitions) -> c.CreatePartitions:
    given = message.HasField("assignments")
    _check_partitions(message.assignments.partitions)
    assignments = tuple(map(_nodes, message.assignments.partitions)) if given else None
    return c.CreatePartitions(message.topic, message.count, assignments, message.validate_only)


def _encode_alter_configs(command: c.AlterConfigs) -> pb.AlterConfigs:
    return pb.AlterConfigs(
        resource_kind=command.resource.kind,
        resource_name=command.resource.name,
        alterations=[pb.ConfigAlteration(name=each.name, op=each.op, value=each.value) for each in command.alterations],
        asked=command.asked,
        replace=command.replace,
        validate_only=command.validate_only,
    )


def _decode_alter_configs(message: pb.AlterConfigs) -> c.AlterConfigs:
    _check_rows(message.alterations, MAX_CONFIGS, "alterations")
    alterations = tuple(
        ConfigAlteration(each.name, AlterOp(each.op), each.value if each.HasField("value") else None)
        for each in message.alterations
    )
    resource = Resource(ResourceKind(message.resource_kind), message.resource_name)
    return c.AlterConfigs(resource, alterations, message.asked, message.replace, message.validate_only)


def _encode_update_features(command: c.UpdateFeatures) -> pb.UpdateFeatures:
    updates = [
        pb.FeatureUpdate(name=each.name, level=each.level, change=None if each.change is None else each.change.value)
        for each in command.updates
    ]
    return pb.UpdateFeatures(updates=updates, validate_only=command.validate_only)


def _decode_update_features(message: pb.UpdateFeatures) -> c.UpdateFeatures:
    updates = tuple(
        FeatureUpdate(each.name, each.level, FeatureChange(each.change) if each.HasField("change") else None)
        for each in message.updates
    )
    return c.UpdateFeatures(updates, message.validate_only)


def _decode_topic_files(message: TopicFilesRecord) -> c.TopicFilesSeen:
    _check_rows(message.files, MAX_TOPIC_FILES, "topics")
    return c.TopicFilesSeen({_topic_id(each.topic_id): each.revision for each in message.files})


def _encode_register(command: c.RegisterBroker) -> pb.RegisterBroker:
    return pb.RegisterBroker(
        broker_id=command.broker_id,
        disk_identity=command.disk_identity,
        endpoints=endpoint_records(command.endpoints),
        rack=command.rack,
        start_id=command.start_id,
        fenced=command.fenced,
        peer=command.peer,
    )


def _decode_register(message: pb.RegisterBroker) -> c.RegisterBroker:
    return c.RegisterBroker(
        message.broker_id,
        message.disk_identity,
        tuple(map(_endpoint, message.endpoints)),
        message.rack if message.HasField("rack") else None,
        message.start_id,
        message.fenced,
        message.peer,
    )


def _endpoint(message: EndpointRecord) -> Endpoint:
    return Endpoint(message.listener, message.host, message.port)


def _topic_id(raw: bytes) -> TopicId:
    if len(raw) != 16:
        raise ValueError(f"a topic id has 16 bytes, not {len(raw)}")
    return TopicId(raw)


def _registration(field: str, kind: type[c.UnfenceBroker | c.FenceBroker | c.ShutDownBroker]) -> _Form:
    return _Form(
        field,
        lambda command: pb.Registration(broker_id=command.broker_id, broker_epoch=command.broker_epoch),
        lambda message: kind(message.broker_id, message.broker_epoch),
    )


_FORMS: Mapping[type[c.Command[Any]], _Form] = {
    c.CreateTopic: _Form("create_topic", _encode_create_topic, _decode_create_topic),
    c.DeleteTopic: _Form("delete_topic", _encode_delete_topic, _decode_delete_topic),
    c.CreatePartitions: _Form("create_partitions", _encode_create_partitions, _decode_create_partitions),
    c.AlterConfigs: _Form("alter_configs", _encode_alter_configs, _decode_alter_configs),
    c.UpdateFeatures: _Form("update_features", _encode_update_features, _decode_update_features),
    c.AllocateProducerIds: _Form(
        "allocate_producer_ids",
        lambda command: pb.AllocateProducerIds(broker_id=command.broker_id),
        lambda message: c.AllocateProducerIds(message.broker_id),
    ),
    c.SkipProducerIds: _Form("skip_producer_ids", lambda _: pb.SkipProducerIds(), lambda _: c.SkipProducerIds()),
    c.TopicFilesSeen: _Form(
        "topic_files_seen",
        lambda command: topic_files_record(command.revisions),
        _decode_topic_files,
    ),
    c.ForgetTopic: _Form(
        "forget_topic",
        lambda command: pb.ForgetTopic(topic_id=command.topic_id),
        lambda message: c.ForgetTopic(_topic_id(message.topic_id)),
    ),
    c.ClaimIncarnation: _Form(
        "claim_incarnation",
        lambda command: pb.ClaimIncarnation(
            node_id=command.node_id, incarnation=command.incarnation, start_id=command.start_id
        ),
        lambda message: c.ClaimIncarnation(message.node_id, message.incarnation, message.start_id),
    ),
    c.ConfirmIncarnation: _Form(
        "confirm_incarnation",
        lambda command: pb.ConfirmIncarnation(incarnation=command.incarnation, start_id=command.start_id),
        lambda message: c.ConfirmIncarnation(message.incarnation, message.start_id),
    ),
    c.FoundCluster: _Form(
        "found_cluster",
        lambda command: pb.FoundCluster(cluster_id=command.cluster_id),
        lambda message: c.FoundCluster(message.cluster_id),
    ),
    c.RegisterBroker: _Form("register_broker", _encode_register, _decode_register),
    c.UnfenceBroker: _registration("unfence_broker", c.UnfenceBroker),
    c.FenceBroker: _registration("fence_broker", c.FenceBroker),
    c.ShutDownBroker: _registration("shut_down_broker", c.ShutDownBroker),
    c.UnregisterBroker: _Form(
        "unregister_broker",
        lambda command: pb.UnregisterBroker(broker_id=command.broker_id),
        lambda message: c.UnregisterBroker(message.broker_id),
    ),
    c.ElectUnclean: _Form(
        "elect_unclean",
        lambda command: pb.ElectUnclean(topic=command.topic, partition=command.partition, moved_end=command.moved_end),
        lambda message: c.ElectUnclean(message.topic, message.partition, message.moved_end),
    ),
    c.Reassign: _Form(
        "reassign",
        lambda command: pb.Reassign(
            topic=command.topic,
            partition=command.partition,
            replicas=None if command.replicas is None else ReplicaList(nodes=command.replicas),
        ),
        lambda message: c.Reassign(
            message.topic, message.partition, _nodes(message.replicas) if message.HasField("replicas") else None
        ),
    ),
    c.HandOver: _Form(
        "hand_over",
        lambda command: pb.HandOver(
            topic_id=command.topic_id,
            partition=command.partition,
            broker_id=command.broker_id,
            broker_epoch=command.broker_epoch,
            leader_epoch=command.leader_epoch,
            partition_epoch=command.partition_epoch,
            end=command.end,
        ),
        lambda message: c.HandOver(
            _topic_id(message.topic_id),
            message.partition,
            message.broker_id,
            message.broker_epoch,
            message.leader_epoch,
            message.partition_epoch,
            message.end,
        ),
    ),
    c.RaiseLeaderEpoch: _Form(
        "raise_leader_epoch",
        lambda command: pb.RaiseLeaderEpoch(
            topic_id=command.topic_id,
            partition=command.partition,
            broker_id=command.broker_id,
            broker_epoch=command.broker_epoch,
            above=command.above,
        ),
        lambda message: c.RaiseLeaderEpoch(
            _topic_id(message.topic_id),
            message.partition,
            message.broker_id,
            message.broker_epoch,
            message.above,
        ),
    ),
    c.LeadEverything: _Form(
        "lead_everything",
        lambda command: pb.LeadEverything(broker_id=command.broker_id),
        lambda message: c.LeadEverything(message.broker_id),
    ),
}
_DECODERS = {form.field: form.decode for form in _FORMS.values()}
