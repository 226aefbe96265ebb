"""ListPartitionReassignments, key 46, version 0 (KIP-455): the moves of partitions that are in progress; null means all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from grpc_api.contract.topics import TopicDescription
from kafka_gateway.message_handler import Call, Fields


async def serve(request: Any, call: Call) -> Fields:
    return {"error_code": 0, "error_message": None, "topics": [row async for row in _topics(request, call)]}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "topics": ()}


async def _topics(request: Any, call: Call) -> AsyncIterator[Any]:
    if request.topics is None:
        async for topic in call.each(call.core.topics.describe()):
            if isinstance(topic, TopicDescription) and (rows := _moving(call, topic, None)):
                yield call.make("OngoingTopicReassignment", name=topic.name, partitions=rows)
        return
    async for wanted in call.each(request.topics):
        topic = call.core.topics.describe([wanted.name])[0]
        if isinstance(topic, TopicDescription) and (rows := _moving(call, topic, set(wanted.partition_indexes))):
            yield call.make("OngoingTopicReassignment", name=topic.name, partitions=rows)


def _moving(call: Call, topic: TopicDescription, indexes: set[int] | None) -> list[Any]:
    return [
        call.make(
            "OngoingPartitionReassignment",
            partition_index=row.partition,
            replicas=tuple(row.replicas),
            adding_replicas=tuple(row.adding),
            removing_replicas=tuple(row.removing),
        )
        for row in topic.partitions
        if row.adding and (indexes is None or row.partition in indexes)
    ]
