"""OffsetDelete, key 47, version 0: removes committed offsets of topics that no member subscribes to (KIP-496)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from grpc_api.contract.groups import (
    OffsetDelete,
    OffsetsDeleted,
    PartitionOutcome,
    TopicOutcome,
    TopicPartitionIndexes,
)
from grpc_api.contract.request_parts import is_long, parts_of
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if is_long(request.topics, (len(topic.partitions) for topic in request.topics)):
        return _in_parts(request, call)
    answer = _deleted(request.group_id, ((topic, topic.partitions) for topic in request.topics), call)
    return Delayed(answer, lambda done: _fields(done, call))


async def _in_parts(request: Any, call: Call) -> Fields:
    """Deletes part by part. A refused part ends the request; the parts before it stay deleted. The client repeats the whole
    request."""
    # As in Kafka, the answer omits topics without partitions.
    asked = [topic async for topic in call.each(request.topics) if topic.partitions]
    outcomes: list[list[PartitionOutcome]] = [[] for _ in asked]
    for part in parts_of((topic, topic.partitions) for topic in asked):
        done = await call.waiting(_deleted(request.group_id, ((each.topic, each.partitions) for each in part), call))
        if done.error is not None:
            return _fields(done, call)
        for each, outcome in zip(part, done.topics, strict=True):
            outcomes[each.at] += outcome.partitions
        await call.turn.rest_if_over()
    topics = [TopicOutcome(topic.name, rows) for topic, rows in zip(asked, outcomes, strict=True)]
    return _fields(OffsetsDeleted(None, topics), call)


def _deleted(group: str, topics: Iterable[tuple[Any, Sequence[Any]]], call: Call) -> asyncio.Future[OffsetsDeleted]:
    asked = [
        TopicPartitionIndexes(topic.name, [each.partition_index for each in partitions]) for topic, partitions in topics
    ]
    return call.core.groups.delete_offsets(OffsetDelete(group, asked), call.caller)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "topics": ()}


def _fields(done: OffsetsDeleted, call: Call) -> Fields:
    return {
        "error_code": code_of(done.error),
        "topics": (
            call.make(
                "OffsetDeleteResponseTopic",
                name=topic.topic,
                partitions=(
                    call.make(
                        "OffsetDeleteResponsePartition",
                        partition_index=each.partition,
                        error_code=code_of(each.error),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in done.topics
        ),
    }
