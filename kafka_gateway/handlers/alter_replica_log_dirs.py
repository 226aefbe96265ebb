"""AlterReplicaLogDirs, key 34, versions 1 to 2 (KIP-113). A node has one data directory, so a replica can only stay in it.

As in Kafka, the answer for a partition without a replica on this node is REPLICA_NOT_AVAILABLE, so that the tool asks the right
node.
"""

from __future__ import annotations

import os
from typing import Any

from grpc_api.contract.topics import TopicDescription
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    paths: set[str] = set()
    here: set[TopicPartition] = set()
    for directory in call.core.node.log_directories():
        paths.add(directory.path)
        async for replica in call.each(directory.replicas):
            here.add(replica.partition)
    topics: dict[str, list[Any]] = {}
    async for wanted in call.each(request.dirs):
        is_ours = _stands_in(wanted.path, paths)
        async for topic in call.each(wanted.topics):
            known = _partitions(call, topic.name) if is_ours else None
            rows = topics.setdefault(topic.name, [])
            async for index in call.each(topic.partitions):
                rows.append(_row(call, index, _code(TopicPartition(topic.name, index), known, here)))
    return _fields(call, topics)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    topics: dict[str, list[Any]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            topics.setdefault(topic.name, []).extend(_row(call, index, code) for index in topic.partitions)
    return _fields(call, topics)


def _stands_in(path: str, paths: set[str]) -> bool:
    return os.path.isabs(path) and os.path.normpath(path) in paths


def _code(partition: TopicPartition, known: set[int] | None, here: set[TopicPartition]) -> ErrorCode:
    """`known` are the topic's partitions; None: the requested directory is not this node's."""
    if known is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if partition.partition not in known:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if partition in here else ErrorCode.REPLICA_NOT_AVAILABLE


def _partitions(call: Call, name: str) -> set[int]:
    found = call.core.topics.describe([name])[0]
    return {p.partition for p in found.partitions} if isinstance(found, TopicDescription) else set()


def _row(call: Call, index: int, code: int) -> Any:
    return call.make("AlterReplicaLogDirPartitionResult", partition_index=index, error_code=code)


def _fields(call: Call, topics: dict[str, list[Any]]) -> Fields:
    return {
        "results": (
            call.make("AlterReplicaLogDirTopicResult", topic_name=name, partitions=rows)
            for name, rows in topics.items()
        )
    }
