"""AlterReplicaLogDirs, key 34, versions 1 to 2 (KIP-113). A node has one data directory, so a replica can only stay in it."""

from __future__ import annotations

import os
from typing import Any

from grpc_api.contract.topics import TopicDescription
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields


async def serve(request: Any, call: Call) -> Fields:
    paths = {directory.path for directory in call.core.node.log_directories()}
    topics: dict[str, list[Any]] = {}
    async for directory in call.each(request.dirs):
        is_ours = _stands_in(directory.path, paths)
        async for topic in call.each(directory.topics):
            known = _partitions(call, topic.name) if is_ours else set()
            rows = topics.setdefault(topic.name, [])
            async for index in call.each(topic.partitions):
                missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_ours else ErrorCode.LOG_DIR_NOT_FOUND
                rows.append(_row(call, index, ErrorCode.NONE if index in known else missing))
    return _fields(call, topics)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    topics: dict[str, list[Any]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            topics.setdefault(topic.name, []).extend(_row(call, index, code) for index in topic.partitions)
    return _fields(call, topics)


def _stands_in(path: str, paths: set[str]) -> bool:
    return os.path.isabs(path) and os.path.normpath(path) in paths


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
