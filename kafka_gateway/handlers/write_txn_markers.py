"""WriteTxnMarkers, key 27, versions 1 and 2: ends transactions in partitions, as their coordinator decided. Administrators end
a hanging transaction with it (KIP-664). v2 has the version of the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.types import TopicPartition


async def serve(request: Any, call: Call) -> Fields:
    """Makes the rows of the answer while they are written. As in Kafka, a marker without partitions has no row."""
    rows: list[tuple[Any, Mapping[TopicPartition, int]]] = []
    for each in request.markers:
        partitions = [partition async for partition in call.each(_partitions(each))]
        if partitions:
            producer = ProducerIdAndEpoch(each.producer_id, each.producer_epoch)
            version = getattr(each, "transaction_version", 0)
            markers = Markers("", producer, each.transaction_result, partitions, version)
            writing = call.core.transactions.write_markers(markers, each.coordinator_epoch, call.caller)
            errors = await call.waiting(writing)
            rows.append((each, {partition: code_of(error) async for partition, error in call.each(errors)}))
        await call.turn.rest_if_over()
    return {"markers": (_result(call, each, codes, 0) for each, codes in rows)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"markers": (_result(call, each, {}, code) for each in request.markers)}


def _partitions(marker: Any) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes)


def _result(call: Call, marker: Any, codes: Mapping[TopicPartition, int], rest: int) -> Any:
    topics = (
        call.make("WritableTxnMarkerTopicResult", name=topic.name, partitions=_rows(call, topic, codes, rest))
        for topic in marker.topics
    )
    return call.make("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=topics)


def _rows(call: Call, topic: Any, codes: Mapping[TopicPartition, int], rest: int) -> Iterator[Any]:
    for number in topic.partition_indexes:
        code = codes.get(TopicPartition(topic.name, number), rest)
        yield call.make("WritableTxnMarkerPartitionResult", partition_index=number, error_code=code)
