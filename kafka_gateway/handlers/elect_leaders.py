"""ElectLeaders, key 43, versions 0 to 2. v1 can ask for an unclean election (KIP-460); null means every partition.

A partition that is led by its first replica needs no election of either kind. If all partitions are requested, only those
that needed one are in the answer. A single node has no other candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    results = (
        _result(call, topic.topic, _elected(call, topic.topic, topic.partitions, election))
        for topic in request.topic_partitions
    )
    return {"error_code": 0, "replica_election_results": results}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    results = (
        _result(call, topic.topic, (_row(call, index, code, message) for index in topic.partitions))
        for topic in request.topic_partitions or ()
    )
    return {"error_code": code, "replica_election_results": results}


def _every(call: Call, election: int) -> Fields:
    def rows(topic: TopicDescription) -> Iterator[Any]:
        for row in topic.partitions:
            if not _is_led(row, election):
                yield _without_candidate(call, row.partition, election)

    topics = (topic for topic in call.core.topics.describe() if isinstance(topic, TopicDescription))
    return {"error_code": 0, "replica_election_results": (_result(call, topic.name, rows(topic)) for topic in topics)}


def _elected(call: Call, name: str, indexes: Iterable[int], election: int) -> Iterator[Any]:
    (topic,) = call.core.topics.describe([name])
    known = {row.partition: row for row in topic.partitions} if isinstance(topic, TopicDescription) else None
    for index in indexes:
        yield _elect(call, name, known, index, election)


def _elect(call: Call, name: str, known: Mapping[int, PartitionDescription] | None, index: int, election: int) -> Any:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if known is None:
        return _row(call, index, unknown, f"No such topic as {name}")
    found = known.get(index)
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


def _result(call: Call, name: str, rows: Iterable[Any]) -> Any:
    return call.make("ReplicaElectionResult", topic=name, partition_result=rows)
