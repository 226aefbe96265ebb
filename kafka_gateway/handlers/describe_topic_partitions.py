"""DescribeTopicPartitions, key 75, version 0 (KIP-966): topics in order of their names, at most so many partitions an answer.

No names means all topics. The cursor says where the next answer begins: at a partition, or with 0 at the begin of a topic.
`max.request.partition.size.limit` bounds what one answer holds, and one partition is always in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import code_of
from kafka_gateway.handlers.metadata import ALL_TOPIC_OPERATIONS, NOT_ASKED
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import InvalidRequest, LogError


async def serve(request: Any, call: Call) -> Fields:
    cursor = request.cursor
    names = await _names(request, call)
    if cursor is not None:
        if request.topics and cursor.topic_name not in names:
            raise InvalidRequest(
                f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {cursor.topic_name}"
            )
        if cursor.partition_index < 0:
            raise InvalidRequest(f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}")
    left = max(1, min(request.response_partition_limit, call.options.described_partitions))
    rows: list[Any] = []
    async for name in call.each(names):
        (found,) = call.core.topics.describe([name])
        if left == 0:
            return {"topics": tuple(rows), "next_cursor": _cursor(call, name, 0)}
        if isinstance(found, LogError):
            # Of all topics, one that has gone meanwhile is left out.
            if request.topics:
                rows.append(_refused(call, name, code_of(found), ALL_TOPIC_OPERATIONS))
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        shown = [p for p in found.partitions if p.partition >= first]
        rows.append(_topic(call, found, shown[:left]))
        if len(shown) > left:
            return {"topics": tuple(rows), "next_cursor": _cursor(call, name, shown[left].partition)}
        left -= len(shown)
    return {"topics": tuple(rows), "next_cursor": None}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (_refused(call, topic.name, code, NOT_ASKED) for topic in request.topics),
        "next_cursor": None,
    }


async def _names(request: Any, call: Call) -> list[str]:
    """Each once, in order, from the cursor's topic on."""
    names: Iterable[str] = (topic.name for topic in request.topics)
    if not request.topics:
        names = (topic.name for topic in call.core.topics.describe() if isinstance(topic, TopicDescription))
    begin = "" if request.cursor is None else request.cursor.topic_name
    return sorted({name async for name in call.each(names) if name >= begin})


def _cursor(call: Call, name: str, partition: int) -> Any:
    return call.make("Cursor", topic_name=name, partition_index=partition)


def _refused(call: Call, name: str, code: int, operations: int) -> Any:
    return call.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=code,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _topic(call: Call, topic: TopicDescription, partitions: list[PartitionDescription]) -> Any:
    return call.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=0,
        name=topic.name,
        topic_id=to_uuid(topic.topic_id),
        is_internal=topic.internal,
        partitions=(_partition(call, partition) for partition in partitions),
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )


def _partition(call: Call, partition: PartitionDescription) -> Any:
    return call.make(
        "DescribeTopicPartitionsResponsePartition",
        error_code=code_of(partition.error),
        partition_index=partition.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=tuple(partition.offline),
    )
