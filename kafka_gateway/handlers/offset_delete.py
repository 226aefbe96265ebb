"""OffsetDelete, key 47, version 0: committed offsets of topics that no member is subscribed to are removed (KIP-496)."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import OffsetDelete, OffsetsDeleted, TopicPartitionIndexes
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields


def serve(request: Any, call: Call) -> Delayed:
    topics = [
        TopicPartitionIndexes(topic.name, [each.partition_index for each in topic.partitions])
        for topic in request.topics
    ]
    answer = call.core.groups.delete_offsets(OffsetDelete(request.group_id, topics), call.caller)
    return Delayed(answer, lambda done: _fields(done, call))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "topics": ()}


def _fields(done: OffsetsDeleted, call: Call) -> Fields:
    return {
        "error_code": code_of(done.error),
        "topics": (
            call.make(
                "OffsetDeleteResponseTopic",
                name=topic.topic,
                partitions=tuple(
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
