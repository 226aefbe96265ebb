"""ElectLeaders, key 43, versions 0 to 2. v1 can ask for an unclean election (KIP-460); null means every partition.

A partition whose leader is its first replica needs no election of either kind, and of all partitions only those that
needed one are named. A quorum of one has nobody else to elect.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = "Leader election not needed for topic partition."


def serve(request: Any, call: Call) -> Fields:
    election = getattr(request, "election_type", PREFERRED)
    if election not in (PREFERRED, UNCLEAN):
        return refuse(request, call, ErrorCode.INVALID_REQUEST, f"Unknown election type {election}")
    if request.topic_partitions is None:
        return _every(call, election)
    results = []
    for topic in request.topic_partitions:
        known = call.core.topics.describe([topic.topic])[0]
        rows = [_elect(call, topic.topic, known, index, election) for index in topic.partitions]
        results.append(_result(call, topic.topic, rows))
    return {"error_code": 0, "replica_election_results": tuple(results)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    results = tuple(
        _result(call, topic.topic, [_row(call, index, code, message) for index in topic.partitions])
        for topic in request.topic_partitions or ()
    )
    return {"error_code": code, "replica_election_results": results}


def _every(call: Call, election: int) -> Fields:
    results = []
    for topic in call.core.topics.describe():
        if isinstance(topic, TopicDescription):
            rows = [
                _without_candidate(call, p.partition, election) for p in topic.partitions if not _is_led(p, election)
            ]
            results.append(_result(call, topic.name, rows))
    return {"error_code": 0, "replica_election_results": tuple(results)}


def _elect(call: Call, name: str, topic: object, index: int, election: int) -> Any:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not isinstance(topic, TopicDescription):
        return _row(call, index, unknown, f"No such topic as {name}")
    found = next((p for p in topic.partitions if p.partition == index), None)
    if found is None:
        return _row(call, index, unknown, f"No such partition as {name}-{index}")
    if _is_led(found, election):
        return _row(call, index, ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED)
    return _without_candidate(call, index, election)


def _is_led(partition: PartitionDescription, election: int) -> bool:
    if partition.leader < 0:
        return False
    return election == UNCLEAN or partition.leader == partition.replicas[0]


def _without_candidate(call: Call, index: int, election: int) -> Any:
    if election == PREFERRED:
        message = "The preferred leader was not available."
        return _row(call, index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    message = "Eligible topic partition leaders are not available."
    return _row(call, index, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)


def _row(call: Call, index: int, code: int, message: str) -> Any:
    return call.make("PartitionResult", partition_id=index, error_code=code, error_message=message)


def _result(call: Call, name: str, rows: list[Any]) -> Any:
    return call.make("ReplicaElectionResult", topic=name, partition_result=tuple(rows))
