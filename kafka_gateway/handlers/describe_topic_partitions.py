"""DescribeTopicPartitions, key 75, version 0 (KIP-966): describes topics by name, with a bounded number of partitions per
answer.

A request without names means all topics. The cursor is the first partition of the next answer.
The request's limit and `max.request.partition.size.limit` bound the partitions of one answer; at least one is allowed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import code_of
from kafka_gateway.handlers.metadata import ALL_TOPIC_OPERATIONS, NOT_ASKED
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import InvalidRequest, LogError

SORTED_AT_ONCE = 1_000


async def serve(request: Any, call: Call) -> Fields:
    cursor = request.cursor
    wanted = await _wanted(request, call)
    if cursor is not None:
        if request.topics and cursor.topic_name not in wanted:
            raise InvalidRequest(
                f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {cursor.topic_name}"
            )
        if cursor.partition_index < 0:
            raise InvalidRequest(f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}")
    names = await _in_order(wanted, call)
    answer: dict[str, Any] = {"next_cursor": None}
    # The rows are made while they are written. The cursor is known after the last row, and is written after it.
    answer["topics"] = _rows(request, call, names, answer)
    return answer


def _rows(request: Any, call: Call, names: Iterable[str], answer: dict[str, Any]) -> Iterator[Any]:
    """Yields the rows for which the answer has room. Sets the cursor if more follow."""
    cursor = request.cursor
    left = max(1, min(request.response_partition_limit, call.options.settings.described_partitions))
    for name in names:
        (found,) = call.core.topics.describe([name])
        if left == 0:
            answer["next_cursor"] = _cursor(call, name, 0)
            return
        if isinstance(found, LogError):
            # A topic that was deleted meanwhile is omitted if all topics were requested.
            if request.topics:
                yield _refused(call, name, code_of(found), ALL_TOPIC_OPERATIONS)
            continue
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        shown = [p for p in found.partitions if p.partition >= first]
        yield _topic(call, found, shown[:left])
        if len(shown) > left:
            answer["next_cursor"] = _cursor(call, name, shown[left].partition)
            return
        left -= len(shown)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (_refused(call, topic.name, code, NOT_ASKED) for topic in request.topics),
        "next_cursor": None,
    }


async def _wanted(request: Any, call: Call) -> dict[str, None]:
    """The requested names without duplicates, from the cursor's topic on."""
    names: Iterable[str] = (topic.name for topic in request.topics)
    if not request.topics:
        names = (topic.name for topic in call.core.topics.describe() if isinstance(topic, TopicDescription))
    begin = "" if request.cursor is None else request.cursor.topic_name
    return {name: None async for name in call.each(names) if name >= begin}


async def _in_order(names: Iterable[str], call: Call) -> Iterable[str]:
    """Sorts in parts, and lets other requests run between them."""
    left, parts = iter(names), list[list[str]]()
    async for part in call.each(iter(lambda: list(itertools.islice(left, SORTED_AT_ONCE)), [])):
        parts.append(sorted(part))
    return parts[0] if len(parts) == 1 else heapq.merge(*parts)


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
