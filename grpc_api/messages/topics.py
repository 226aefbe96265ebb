"""Topics, partitions and configs as messages. `*_message` and `*_answer` encode the contract's values, `*_of` decode.

Values that the contract does not have are refused here with InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from grpc_api.contract.topics import (
    AlterOp,
    BrokerDescription,
    ClusterDescription,
    ConfigAlteration,
    ConfigEntry,
    ConfigKind,
    ConfigSource,
    ConfigSynonym,
    CreatedTopic,
    Endpoint,
    NewTopic,
    PartitionDescription,
    Resource,
    ResourceKind,
    TopicDescription,
)
from grpc_api.messages.errors import detail_of, error_of
from grpc_api.messages.log import check_count
from grpc_api.proto import configs_pb2
from grpc_api.proto import topics_pb2 as pb
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import TopicId

#: Kafka's value for "the broker's default".
_DEFAULT = -1


# --- descriptions -----------------------------------------------------------------------------------------------------
def cluster_message(cluster: ClusterDescription) -> pb.ClusterDescription:
    return pb.ClusterDescription(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=[
            pb.Broker(
                node_id=each.node_id,
                endpoints=[pb.Endpoint(listener=at.listener, host=at.host, port=at.port) for at in each.endpoints],
                rack=each.rack,
                grpc=each.grpc,
            )
            for each in cluster.brokers
        ],
    )


def cluster_of(message: pb.ClusterDescription) -> ClusterDescription:
    brokers = [
        BrokerDescription(
            each.node_id,
            tuple(Endpoint(at.listener, at.host, at.port) for at in each.endpoints),
            each.rack if each.HasField("rack") else None,
            each.grpc,
        )
        for each in message.brokers
    ]
    return ClusterDescription(message.cluster_id, message.controller_id, brokers)


def partition_message(partition: PartitionDescription) -> pb.PartitionDescription:
    return pb.PartitionDescription(
        partition=partition.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        replicas=partition.replicas,
        in_sync=partition.isr,
        offline=partition.offline,
        error=None if partition.error is None else detail_of(partition.error),
        adding=partition.adding,
        removing=partition.removing,
    )


def topic_message(topic: TopicDescription) -> pb.TopicDescription:
    return pb.TopicDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=map(partition_message, topic.partitions),
        internal=topic.internal,
    )


def topic_of(message: pb.TopicDescription) -> TopicDescription:
    partitions = [
        PartitionDescription(
            each.partition,
            each.leader,
            each.leader_epoch,
            tuple(each.replicas),
            tuple(each.in_sync),
            tuple(each.offline),
            error_of(each.error) if each.HasField("error") else None,
            tuple(each.adding),
            tuple(each.removing),
        )
        for each in message.partitions
    ]
    return TopicDescription(message.name, TopicId(message.topic_id), partitions, message.internal)


def topic_answer(answer: TopicDescription | LogError) -> pb.TopicAnswer:
    if isinstance(answer, LogError):
        return pb.TopicAnswer(error=detail_of(answer))
    return pb.TopicAnswer(topic=topic_message(answer))


# --- creating and deleting --------------------------------------------------------------------------------------------
def new_topic_message(topic: NewTopic) -> pb.NewTopic:
    return pb.NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[pb.NewTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
        assignments=[
            pb.ReplicaAssignment(partition=partition, node_ids=nodes) for partition, nodes in topic.assignments.items()
        ],
    )


def new_topics_of(messages: Sequence[pb.NewTopic]) -> list[NewTopic]:
    """Raises InvalidRequest if the topics name too many configs, partitions or replicas, or if a topic names a config or a
    partition twice."""
    check_count(sum(len(each.configs) for each in messages), of="configs")
    check_count(sum(len(each.assignments) for each in messages))
    check_assignments([row for each in messages for row in each.assignments])
    return [new_topic_of(each) for each in messages]


def check_assignments(assignments: Collection[pb.ReplicaAssignment]) -> None:
    """Raises InvalidRequest if there are too many assignments, or too many replicas in all of them."""
    check_count(len(assignments))
    check_count(sum(len(each.node_ids) for each in assignments), of="replicas")


def new_topic_of(message: pb.NewTopic) -> NewTopic:
    """Raises InvalidRequest if a config or a partition is given twice."""
    names = [each.name for each in message.configs]
    numbers = [each.partition for each in message.assignments]
    for kind, given in (("config", names), ("partition", numbers)):
        if len(set(given)) != len(given):
            raise InvalidRequest(f"a {kind} of topic {message.name!r} is given twice")
    return NewTopic(
        message.name,
        message.partitions if message.HasField("partitions") else _DEFAULT,
        message.replication_factor if message.HasField("replication_factor") else _DEFAULT,
        {each.name: each.value if each.HasField("value") else None for each in message.configs},
        {each.partition: tuple(each.node_ids) for each in message.assignments},
    )


def created_answer(answer: CreatedTopic | LogError) -> pb.CreatedTopicAnswer:
    if isinstance(answer, LogError):
        return pb.CreatedTopicAnswer(error=detail_of(answer))
    return pb.CreatedTopicAnswer(
        topic=pb.CreatedTopic(
            name=answer.name,
            topic_id=answer.topic_id,
            partitions=answer.partitions,
            replication_factor=answer.replication_factor,
            configs=map(entry_message, answer.configs),
        )
    )


def created_of(answer: pb.CreatedTopicAnswer) -> CreatedTopic | LogError:
    if answer.HasField("error"):
        return error_of(answer.error)
    made = answer.topic
    configs = [entry_of(each) for each in made.configs]
    return CreatedTopic(made.name, TopicId(made.topic_id), made.partitions, made.replication_factor, configs)


def deleted_answer(answer: tuple[str, TopicId] | LogError) -> pb.DeletedTopicAnswer:
    if isinstance(answer, LogError):
        return pb.DeletedTopicAnswer(error=detail_of(answer))
    name, topic_id = answer
    return pb.DeletedTopicAnswer(topic=pb.DeletedTopic(name=name, topic_id=topic_id))


def deleted_of(answer: pb.DeletedTopicAnswer) -> tuple[str, TopicId] | LogError:
    if answer.HasField("error"):
        return error_of(answer.error)
    return answer.topic.name, TopicId(answer.topic.topic_id)


def assignment_messages(assignments: Sequence[Sequence[int]] | None) -> list[pb.ReplicaAssignment]:
    return [pb.ReplicaAssignment(partition=index, node_ids=nodes) for index, nodes in enumerate(assignments or ())]


# --- configs ----------------------------------------------------------------------------------------------------------
def resource_of(message: configs_pb2.Resource) -> Resource:
    """Raises InvalidRequest for an unknown kind."""
    try:
        return Resource(ResourceKind(message.kind), message.name)
    except ValueError:
        known = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in ResourceKind if kind.value)
        raise InvalidRequest(f"resource kind {message.kind} does not exist: {known}") from None


def entry_message(entry: ConfigEntry) -> configs_pb2.ConfigEntry:
    return configs_pb2.ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=entry.source,
        type=entry.kind,
        read_only=entry.read_only,
        sensitive=entry.sensitive,
        synonyms=[
            configs_pb2.ConfigSynonym(name=each.name, value=each.value, source=each.source) for each in entry.synonyms
        ],
        documentation=entry.documentation,
    )


def entry_of(message: configs_pb2.ConfigEntry) -> ConfigEntry:
    synonyms = [
        ConfigSynonym(each.name, each.value if each.HasField("value") else None, ConfigSource(each.source))
        for each in message.synonyms
    ]
    return ConfigEntry(
        message.name,
        message.value if message.HasField("value") else None,
        ConfigSource(message.source),
        ConfigKind(message.type),
        message.read_only,
        message.sensitive,
        synonyms,
        message.documentation if message.HasField("documentation") else None,
    )


def alteration_message(alteration: ConfigAlteration) -> configs_pb2.ConfigAlteration:
    return configs_pb2.ConfigAlteration(name=alteration.name, operation=alteration.op, value=alteration.value)


def alteration_of(message: configs_pb2.ConfigAlteration) -> ConfigAlteration:
    """Raises InvalidRequest for an unknown operation."""
    try:
        operation = AlterOp(message.operation)
    except ValueError:
        raise InvalidRequest(
            f"operation {message.operation} on {message.name} does not exist: 0 set, 1 delete, 2 append, 3 subtract"
        ) from None
    return ConfigAlteration(message.name, operation, message.value if message.HasField("value") else None)
