"""AlterPartitionReassignments, key 45, versions 0 to 1 (KIP-455). A replica never moves.

So the current assignment is the only valid one. It completes at once, and there is no reassignment to cancel. v1 can forbid
a change of the replication factor; a valid assignment never changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grpc_api.contract.topics import TopicDescription
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

_ASSIGNMENT = "The manual partition assignment includes"


def serve(request: Any, call: Call) -> Fields:
    brokers = {broker.node_id for broker in call.core.topics.cluster().brokers}
    responses = (
        call.make("ReassignableTopicResponse", name=topic.name, partitions=_partitions(call, topic, brokers))
        for topic in request.topics
    )
    return _fields(request, 0, None if request.topics else "", responses)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return _fields(request, code, message, [])


def _partitions(call: Call, topic: Any, brokers: set[int]) -> Iterator[Any]:
    known = call.core.topics.describe([topic.name])[0]
    indexes = {row.partition for row in known.partitions} if isinstance(known, TopicDescription) else None
    for row in topic.partitions:
        yield _partition(call, topic.name, indexes, row, brokers)


def _fields(request: Any, code: int, message: str | None, responses: Iterable[Any]) -> Fields:
    return {
        "allow_replication_factor_change": getattr(request, "allow_replication_factor_change", True),
        "error_code": code,
        "error_message": message,
        "responses": responses,
    }


def _partition(call: Call, name: str, indexes: set[int] | None, row: Any, brokers: set[int]) -> Any:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if indexes is None:
        return _row(call, row, unknown, f"Unable to find a topic named {name}.")
    if row.partition_index not in indexes:
        return _row(call, row, unknown, f"Unable to find partition {name}:{row.partition_index}.")
    if row.replicas is None:
        return _row(call, row, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    problem = _problem(row.replicas, brokers)
    code = ErrorCode.NONE if problem is None else ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return _row(call, row, code, problem)


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
