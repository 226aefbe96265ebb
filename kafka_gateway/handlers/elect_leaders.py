"""ElectLeaders, key 43, versions 0 to 2. v1 can ask for an unclean election (KIP-460); null means every partition.

A partition has one replica. While that replica leads, neither kind of election is needed. A partition without a leader waits
for its replica's disk; an unclean election accepts the loss of that disk. If all partitions are requested, the answer contains
only those that needed an election.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LeaderNotAvailable, LogError
from storage_tiers.types import TopicPartition

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = "Leader election not needed for topic partition."


async def serve(request: Any, call: Call) -> Fields:
    election = getattr(request, "election_type", PREFERRED)
    if election not in (PREFERRED, UNCLEAN):
        return refuse(request, call, ErrorCode.INVALID_REQUEST, f"Unknown election type {election}")
    if request.topic_partitions is None:
        results = [row async for row in _every(call, election)]
    else:
        results = [
            _result(call, topic.topic, await _elected(call, topic.topic, topic.partitions, election))
            async for topic in call.each(request.topic_partitions)
        ]
    return {"error_code": 0, "replica_election_results": results}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    results = (
        _result(call, topic.topic, (_row(call, index, code, message) for index in topic.partitions))
        for topic in request.topic_partitions or ()
    )
    return {"error_code": code, "replica_election_results": results}


async def _every(call: Call, election: int) -> AsyncIterator[Any]:
    async for topic in call.each(call.core.topics.describe()):
        if not isinstance(topic, TopicDescription):
            continue
        rows = [await _elect(call, topic.name, row, election) for row in topic.partitions if not _is_led(row, election)]
        yield _result(call, topic.name, rows)


async def _elected(call: Call, name: str, indexes: Iterable[int], election: int) -> list[Any]:
    (topic,) = call.core.topics.describe([name])
    known = {row.partition: row for row in topic.partitions} if isinstance(topic, TopicDescription) else None
    unknown, rows = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
    async for index in call.each(indexes):
        found = None if known is None else known.get(index)
        if known is None:
            rows.append(_row(call, index, unknown, f"No such topic as {name}"))
        elif found is None:
            rows.append(_row(call, index, unknown, f"No such partition as {name}-{index}"))
        elif _is_led(found, election):
            rows.append(_row(call, index, ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED))
        else:
            rows.append(await _elect(call, name, found, election))
    return rows


async def _elect(call: Call, name: str, partition: PartitionDescription, election: int) -> Any:
    """The row of a partition that needs an election."""
    index = partition.partition
    if election == PREFERRED:
        message = "The preferred leader was not available."
        return _row(call, index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    try:
        await call.core.topics.elect_unclean(TopicPartition(name, index))
    except LeaderNotAvailable as error:
        return _row(call, index, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message_of(error))
    except LogError as error:
        return _row(call, index, code_of(error), message_of(error))
    return _row(call, index, 0, None)


def _is_led(partition: PartitionDescription, election: int) -> bool:
    if partition.leader < 0:
        return False
    return election == UNCLEAN or partition.leader == partition.replicas[0]


def _row(call: Call, index: int, code: int, message: str | None) -> Any:
    return call.make("PartitionResult", partition_id=index, error_code=code, error_message=message)


def _result(call: Call, name: str, rows: Iterable[Any]) -> Any:
    return call.make("ReplicaElectionResult", topic=name, partition_result=rows)
