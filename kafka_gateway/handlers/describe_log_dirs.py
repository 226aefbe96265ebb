"""DescribeLogDirs, key 35, versions 1 to 4: the contents of the data directory. Null topics mean all. v4 has the size of the
disk.

Sizes are those of local segments; evicted segments do not count, as in Kafka's tiered storage.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.node import LogDirectory, LogReplica
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = set()
        async for topic in call.each(request.topics):
            async for index in call.each(topic.partitions):
                wanted.add(TopicPartition(topic.topic, index))
    directories = call.core.node.log_directories()
    return {"error_code": 0, "results": [await _directory(call, directory, wanted) for directory in directories]}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "results": ()}


async def _directory(call: Call, directory: LogDirectory, wanted: set[TopicPartition] | None) -> Any:
    topics: dict[str, list[LogReplica]] = {}
    async for replica in call.each(directory.replicas if directory.error is None else ()):
        if wanted is None or replica.partition in wanted:
            topics.setdefault(replica.partition.topic, []).append(replica)
    return call.make(
        "DescribeLogDirsResult",
        error_code=code_of(directory.error),
        log_dir=directory.path,
        topics=(_topic(call, name, replicas) for name, replicas in topics.items()),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
    )


def _topic(call: Call, name: str, replicas: list[LogReplica]) -> Any:
    rows = (
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
