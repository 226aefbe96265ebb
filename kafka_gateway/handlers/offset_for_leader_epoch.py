"""OffsetForLeaderEpoch, key 23, versions 2 to 4: where an epoch ended (KIP-101, KIP-320), over both tiers."""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    topics = []
    async for topic in call.each(request.topics):
        rows = [await _end(topic.topic, row, call) async for row in call.each(topic.partitions)]
        topics.append(call.make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=rows))
    return {"topics": topics}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    topics = (
        call.make(
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=(
                call.make("EpochEndOffset", error_code=code, partition=row.partition) for row in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return {"topics": topics}


async def _end(topic: str, row: Any, call: Call) -> Any:
    current = getattr(row, "current_leader_epoch", NO_EPOCH)
    try:
        epoch, end = await call.core.log.epoch_end_offset(
            TopicPartition(topic, row.partition), row.leader_epoch, current
        )
    except LogError as error:
        return call.make("EpochEndOffset", error_code=code_of(error), partition=row.partition)
    return call.make("EpochEndOffset", error_code=0, partition=row.partition, leader_epoch=epoch, end_offset=end)
