"""Requests that librdkafka's admin client lacks: the placement and reassignment of partitions (KIP-455), and the removal of
brokers.

One broker answers all requests of a call, so the placements and the moves in progress are consistent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from service.cli.client.move_planner import Obstacle, PartitionKey, Placement, PlannedMove
from service.cli.client.requests import ask
from service.cli.errors import CommandError

#: The maximum number of moves, and of topics, in one request. Each move is a command to the controller, and the response must
#: come within REQUEST_TIMEOUT_S.
_MOVES_AT_ONCE, _TOPICS_AT_ONCE = 50, 500
_TOPIC_RESOURCE = 2
_STORED, _NOT_COPIED = "remote.storage.enable", "remote.log.copy.disable"

Item = TypeVar("Item")


class Placements(NamedTuple):
    """`brokers` are the live brokers. `rows` have no order."""

    brokers: Sequence[int]
    rows: Sequence[Placement]


def placements(address: str, topics: Collection[str] | None = None) -> Placements:
    """The partitions of all topics, or of the existing ones among `topics`. The only obstacle set here is a missing leader."""
    from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
    from kio.schema.metadata.v12.response import MetadataResponse
    from kio.schema.types import TopicName

    named = (
        None
        if topics is None
        else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in sorted(topics))
    )
    request = MetadataRequest(topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    answer: MetadataResponse = ask(address, request, MetadataResponse)
    targets = moving(address)
    rows = []
    for topic in answer.topics:
        for each in topic.partitions:
            key = str(topic.name), int(each.partition_index)
            target = targets.get(key)
            held = [int(broker) for broker in each.replica_nodes if broker != target]
            if held:
                obstacle = Obstacle.LEADERLESS if each.leader_id < 0 else None
                rows.append(Placement(*key, held[0], target, obstacle))
    return Placements(sorted(int(broker.node_id) for broker in answer.brokers), rows)


def with_obstacles(address: str, rows: Sequence[Placement]) -> list[Placement]:
    """Returns the rows, with an obstacle for each partition of a topic that is not tiered, because partitions move through the
    bucket."""
    tiered: dict[str, bool] = {}
    for some in _pieces(sorted({each.topic for each in rows}), _TOPICS_AT_ONCE):
        tiered |= _tiered(address, some)
    return [
        each if each.obstacle is not None or tiered.get(each.topic, True) else each._replace(obstacle=Obstacle.UNTIERED)
        for each in rows
    ]


def reassign(address: str, moves: Sequence[PlannedMove]) -> Mapping[PartitionKey, str]:
    """Begins or cancels the moves. Returns the reasons for refusals by partition."""
    refused: dict[PartitionKey, str] = {}
    for some in _pieces(moves, _MOVES_AT_ONCE):
        refused |= _reassigned(address, some)
    return refused


def moving(address: str) -> Mapping[PartitionKey, int]:
    """The target brokers of the moves in progress."""
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

    answer: ListPartitionReassignmentsResponse = ask(
        address, ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse
    )
    if answer.error_code:
        raise CommandError(f"cannot list the moves in progress: {_reason(answer.error_code, answer.error_message)}")
    return {
        (str(topic.name), int(each.partition_index)): int(each.adding_replicas[0])
        for topic in answer.topics
        for each in topic.partitions
        if each.adding_replicas
    }


def unregister_broker(address: str, broker: int) -> None:
    """Removes a stopped broker from the cluster (KIP-500). Raises CommandError with the reason if the broker refuses."""
    from kio.schema.types import BrokerId
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
    from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

    request = UnregisterBrokerRequest(broker_id=BrokerId(broker))
    answer: UnregisterBrokerResponse = ask(address, request, UnregisterBrokerResponse)
    if answer.error_code:
        raise CommandError(f"cannot remove broker {broker}: {_reason(answer.error_code, answer.error_message)}")


def _tiered(address: str, topics: Sequence[str]) -> dict[str, bool]:
    """Whether each topic is tiered. Deleted topics are omitted."""
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.static.primitive import i8

    resources = tuple(
        DescribeConfigsResource(
            resource_type=i8(_TOPIC_RESOURCE), resource_name=topic, configuration_keys=(_STORED, _NOT_COPIED)
        )
        for topic in topics
    )
    answer: DescribeConfigsResponse = ask(address, DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
    found = {}
    for result in answer.results:
        if not result.error_code:
            values = {each.name: each.value for each in result.configs}
            found[result.resource_name] = values.get(_STORED) == "true" and values.get(_NOT_COPIED) != "true"
    return found


def _reassigned(address: str, moves: Sequence[PlannedMove]) -> dict[PartitionKey, str]:
    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i32

    topics = tuple(
        ReassignableTopic(
            name=TopicName(topic),
            partitions=tuple(
                ReassignablePartition(
                    partition_index=i32(each.partition),
                    replicas=None if each.target == each.source else (BrokerId(each.target),),
                )
                for each in some
            ),
        )
        for topic, some in groupby(moves, key=lambda each: each.topic)
    )
    answer: AlterPartitionReassignmentsResponse = ask(
        address, AlterPartitionReassignmentsRequest(topics=topics), AlterPartitionReassignmentsResponse
    )
    if answer.error_code:
        raise CommandError(f"cannot move partitions: {_reason(answer.error_code, answer.error_message)}")
    return {
        (str(topic.name), int(each.partition_index)): _reason(each.error_code, each.error_message)
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code
    }


def _reason(code: Any, message: str | None) -> str:
    return message or code.name.replace("_", " ")


def _pieces(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[at : at + size] for at in range(0, len(items), size))
