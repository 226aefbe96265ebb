"""DeleteRecords, key 21, versions 0 to 2: raises the log start; -1 means to the high watermark.

Answered per partition when the new log start is durable in every tier that holds records below it. The request's timeout
is not applied: the core bounds how long it waits for the store, and an answer given before that would say less.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    # As in Kafka, of a partition that stands twice the last offset counts.
    wanted = {
        TopicPartition(topic.name, row.partition_index): row.offset
        for topic in request.topics
        for row in topic.partitions
    }
    starts = await asyncio.gather(*(_delete(call, partition, offset) for partition, offset in wanted.items()))
    results = dict(zip(wanted, starts, strict=True))
    names = dict.fromkeys(partition.topic for partition in wanted)
    return {
        "topics": tuple(
            call.make(
                "DeleteRecordsTopicResult",
                name=name,
                partitions=tuple(_row(call, p.partition, r) for p, r in results.items() if p.topic == name),
            )
            for name in names
        )
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": tuple(
            call.make(
                "DeleteRecordsTopicResult",
                name=topic.name,
                partitions=tuple(
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
        return error


def _row(call: Call, index: int, result: int | LogError) -> Any:
    failed = isinstance(result, LogError)
    return call.make(
        "DeleteRecordsPartitionResult",
        partition_index=index,
        low_watermark=-1 if failed else result,
        error_code=code_of(result) if isinstance(result, LogError) else 0,
    )
