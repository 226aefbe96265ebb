"""DescribeProducers, key 61, version 0 (KIP-664): the active producers of a partition and their open transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_api.contract.node import ActiveProducer
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition

_NOT_HERE = "This server does not host this topic-partition."


def serve(request: Any, call: Call) -> Fields:
    return {"topics": (_topic(call, topic) for topic in request.topics)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (
            _response(call, topic, (_failed(call, index, code, message) for index in topic.partition_indexes))
            for topic in request.topics
        )
    }


def _topic(call: Call, topic: Any) -> Any:
    known = call.core.topics.describe([topic.name])[0]
    if isinstance(known, LogError):
        message = _NOT_HERE if isinstance(known, UnknownTopicOrPartition) else message_of(known)
        return _response(
            call, topic, (_failed(call, index, code_of(known), message) for index in topic.partition_indexes)
        )
    return _response(call, topic, (_partition(call, topic.name, index) for index in topic.partition_indexes))


def _partition(call: Call, name: str, index: int) -> Any:
    try:
        producers = call.core.node.producers(TopicPartition(name, index))
    except UnknownTopicOrPartition as error:
        return _failed(call, index, code_of(error), None)
    except LogError as error:
        return _failed(call, index, code_of(error), message_of(error))
    rows = (_producer(call, producer) for producer in producers)
    return call.make(
        "PartitionResponse", partition_index=index, error_code=0, error_message=None, active_producers=rows
    )


def _producer(call: Call, producer: ActiveProducer) -> Any:
    return call.make(
        "ProducerState",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )


def _failed(call: Call, index: int, code: int, message: str | None) -> Any:
    return call.make(
        "PartitionResponse", partition_index=index, error_code=code, error_message=message, active_producers=()
    )


def _response(call: Call, topic: Any, rows: Iterable[Any]) -> Any:
    return call.make("TopicResponse", name=topic.name, partitions=rows)
