"""AlterPartitionReassignments, key 45, versions 0 to 1 (KIP-455): begins and cancels moves of partitions between brokers.

A partition has one replica, so an assignment names one broker. v1 can forbid a change of the replication factor; a valid
assignment never changes it. Rows that change nothing are answered here. Each other row becomes a command to the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError, NoReassignmentInProgress
from storage_tiers.types import TopicPartition

_ASSIGNMENT = "The manual partition assignment includes"


async def serve(request: Any, call: Call) -> Fields:
    brokers = {broker.node_id for broker in call.core.topics.cluster().brokers}
    responses = [
        call.make("ReassignableTopicResponse", name=topic.name, partitions=await _partitions(call, topic, brokers))
        async for topic in call.each(request.topics)
    ]
    return _fields(request, 0, None if request.topics else "", responses)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return _fields(request, code, message, [])


async def _partitions(call: Call, topic: Any, brokers: set[int]) -> list[Any]:
    described = call.core.topics.describe([topic.name])[0]
    known = {row.partition: row for row in described.partitions} if isinstance(described, TopicDescription) else None
    return [await _partition(call, topic.name, known, row, brokers) async for row in call.each(topic.partitions)]


def _fields(request: Any, code: int, message: str | None, responses: Iterable[Any]) -> Fields:
    return {
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "error_code": code,
        "error_message": message,
        "responses": responses,
    }


async def _partition(
    call: Call, name: str, known: Mapping[int, PartitionDescription] | None, row: Any, brokers: set[int]
) -> Any:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if known is None:
        return _row(call, row, unknown, f"Unable to find a topic named {name}.")
    if (placed := known.get(row.partition_index)) is None:
        return _row(call, row, unknown, f"Unable to find partition {name}:{row.partition_index}.")
    if row.replicas is None and not placed.adding:
        return _row(call, row, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    if row.replicas is not None:
        if (problem := _problem(row.replicas, brokers)) is not None:
            return _row(call, row, ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        if not placed.adding and list(row.replicas) == list(placed.replicas):
            return _row(call, row, ErrorCode.NONE, None)
    try:
        await call.core.topics.reassign(TopicPartition(name, row.partition_index), row.replicas)
    except NoReassignmentInProgress as error:  # the move has ended meanwhile
        return _row(call, row, code_of(error), None)
    except LogError as error:
        return _row(call, row, code_of(error), message_of(error))
    return _row(call, row, ErrorCode.NONE, None)


def _problem(replicas: Sequence[int], brokers: set[int]) -> str | None:
    if not replicas:
        return f"{_ASSIGNMENT} an empty replica list."
    for broker in sorted(replicas):
        if broker not in brokers:
            return f"{_ASSIGNMENT} broker {broker}, but no such broker is registered."
    for broker in sorted(replicas):
        if replicas.count(broker) > 1:
            return f"{_ASSIGNMENT} the broker {broker} more than once."
    return None


def _row(call: Call, row: Any, code: int, message: str | None) -> Any:
    return call.make(
        "ReassignablePartitionResponse",
        partition_index=row.partition_index,
        error_code=code,
        error_message=message,
    )
