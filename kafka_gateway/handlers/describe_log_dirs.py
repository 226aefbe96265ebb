"""DescribeLogDirs, key 35, versions 1 to 4: what lies in the data directory. Null means every topic; v4 tells the disk's size.

Sizes are those of local segments: what went to the bucket and was evicted here does not count (as with Kafka's tiers).
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.node import LogDirectory, LogReplica
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.types import TopicPartition


def serve(request: Any, call: Call) -> Fields:
    wanted = None
    if request.topics is not None:
        wanted = {TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions}
    directories = call.core.node.log_directories()
    return {"error_code": 0, "results": tuple(_directory(call, directory, wanted) for directory in directories)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "results": ()}


def _directory(call: Call, directory: LogDirectory, wanted: set[TopicPartition] | None) -> Any:
    topics: dict[str, list[LogReplica]] = {}
    for replica in directory.replicas if directory.error is None else ():
        if wanted is None or replica.partition in wanted:
            topics.setdefault(replica.partition.topic, []).append(replica)
    return call.make(
        "DescribeLogDirsResult",
        error_code=code_of(directory.error),
        log_dir=directory.path,
        topics=tuple(_topic(call, name, replicas) for name, replicas in topics.items()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )


def _topic(call: Call, name: str, replicas: list[LogReplica]) -> Any:
    rows = tuple(
        call.make(
            "DescribeLogDirsPartition",
            partition_index=replica.partition.partition,
            partition_size=replica.size_bytes,
            offset_lag=replica.offset_lag,
            is_future_key=False,
        )
        for replica in replicas
    )
    return call.make("DescribeLogDirsTopic", name=name, partitions=rows)
