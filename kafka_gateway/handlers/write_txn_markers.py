"""WriteTxnMarkers, key 27, versions 1 and 2: ends transactions in partitions, as their coordinator decided. Administrators end
a hanging transaction with it (KIP-664). v2 brings the version of the transaction.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    results = []
    async for each in call.each(request.markers):
        partitions = [TopicPartition(topic.name, number) for topic in each.topics for number in topic.partition_indexes]
        markers = Markers(
            "",
            ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
            each.transaction_result,
            partitions,
            getattr(each, "transaction_version", 0),
        )
        refused: dict[TopicPartition, LogError] = dict(
            await call.core.transactions.write_markers(markers, each.coordinator_epoch, call.caller)
        )
        results.append(_result(call, each, {partition: code_of(error) for partition, error in refused.items()}))
    return {"markers": tuple(results)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "markers": tuple(
            _result(
                call,
                each,
                {
                    TopicPartition(topic.name, number): code
                    for topic in each.topics
                    for number in topic.partition_indexes
                },
            )
            for each in request.markers
        )
    }


def _result(call: Call, marker: Any, codes: dict[TopicPartition, int]) -> Any:
    topics = tuple(
        call.make(
            "WritableTxnMarkerTopicResult",
            name=topic.name,
            partitions=tuple(
                call.make(
                    "WritableTxnMarkerPartitionResult",
                    partition_index=number,
                    error_code=codes.get(TopicPartition(topic.name, number), 0),
                )
                for number in topic.partition_indexes
            ),
        )
        for topic in marker.topics
    )
    return call.make("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=topics)
