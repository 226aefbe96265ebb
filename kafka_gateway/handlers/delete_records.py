"""DeleteRecords, key 21, versions 0 to 2: raises the log start to an offset; -1 means the high watermark.

Each partition is answered when its new log start is durable in every tier that has records below it. The request's timeout is
ignored, because the core limits its own wait for the store, and the outcome is unknown before that wait ends.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError, as_value
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    # As in Kafka, the last offset of a duplicate partition counts.
    wanted: dict[str, dict[int, int]] = {}
    async for topic in call.each(request.topics):
        offsets = wanted.setdefault(topic.name, {})
        async for row in call.each(topic.partitions):
            offsets[row.partition_index] = row.offset
    # Filled on demand: creating the dicts of 50,000 topics at once takes 10 ms.
    results: dict[str, dict[int, int | LogError]] = {}

    async def delete(partition: TopicPartition, offset: int) -> None:
        results.setdefault(partition.topic, {})[partition.partition] = await _delete(call, partition, offset)

    deletions = ((TopicPartition(name, index), offsets[index]) for name, offsets in wanted.items() for index in offsets)
    await call.together(delete(partition, offset) for partition, offset in deletions)
    return {
        "topics": (
            call.make(
                "DeleteRecordsTopicResult",
                name=name,
                partitions=(_row(call, index, results[name][index]) for index in offsets),
            )
            for name, offsets in wanted.items()
            if offsets
        )
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (
            call.make(
                "DeleteRecordsTopicResult",
                name=topic.name,
                partitions=(
                    call.make(
                        "DeleteRecordsPartitionResult",
                        partition_index=row.partition_index,
                        low_watermark=-1,
                        error_code=code,
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
    }


async def _delete(call: Call, partition: TopicPartition, offset: int) -> int | LogError:
    try:
        return await call.core.log.delete_records(partition, offset)
    except LogError as error:
        return as_value(error)


def _row(call: Call, index: int, result: int | LogError) -> Any:
    failed = isinstance(result, LogError)
    return call.make(
        "DeleteRecordsPartitionResult",
        partition_index=index,
        low_watermark=-1 if failed else result,
        error_code=code_of(result) if isinstance(result, LogError) else 0,
    )
