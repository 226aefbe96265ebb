"""AddPartitionsToTxn, key 24, versions 0 to 5: partitions join a producer's transaction. From v4 on brokers ask, for many
transactions at once, also whether partitions are in one (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, AddPartitions, PartitionsAdded, ProducerIdAndEpoch
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields, ended
from kafka_gateway.transaction_errors import fenced_code
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

#: The first version whose clients know PRODUCER_FENCED.
KNOWS_FENCED = 2
#: The first version of many transactions.
BATCHED = 4


def serve(request: Any, call: Call) -> Any:
    if call.messages.version >= BATCHED:
        return _batched(request, call)
    topics = request.v3_and_below_topics
    asked = AddPartitions(
        request.v3_and_below_transactional_id,
        ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        _partitions(topics),
    )
    future = call.core.transactions.add_partitions(asked, call.caller)
    return Delayed(
        future, lambda done: {"results_by_topic_v3_and_below": _topics(call, topics, _codes(done, topics, call))}
    )


async def _batched(request: Any, call: Call) -> Fields:
    results = []
    async for each in call.each(request.transactions):
        asked = AddPartitions(
            each.transactional_id,
            ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
            _partitions(each.topics),
            verify_only=each.verify_only,
            client_version=EPOCH_PER_TRANSACTION,
        )
        done = await ended(call.core.transactions.add_partitions(asked, call.caller))
        if isinstance(done, Exception):
            done = PartitionsAdded(done if isinstance(done, LogError) else LogError(repr(done)))
        topics = _topics(call, each.topics, _codes(done, each.topics, call))
        results.append(
            call.make("AddPartitionsToTxnResult", transactional_id=each.transactional_id, topic_results=tuple(topics))
        )
    return {"error_code": 0, "results_by_transaction": tuple(results)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if call.messages.version >= BATCHED:
        return {"error_code": code, "results_by_transaction": ()}
    topics = request.v3_and_below_topics
    return {"results_by_topic_v3_and_below": _topics(call, topics, dict.fromkeys(_partitions(topics), code))}


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.name, number) for each in topics for number in each.partitions]


def _codes(done: PartitionsAdded, topics: Sequence[Any], call: Call) -> Mapping[TopicPartition, int]:
    if done.error is not None:
        return dict.fromkeys(_partitions(topics), fenced_code(done.error, call.messages.version, KNOWS_FENCED))
    return {partition: code_of(error) for partition, error in done.errors}


def _topics(call: Call, topics: Sequence[Any], codes: Mapping[TopicPartition, int]) -> tuple[Any, ...]:
    return tuple(
        call.make(
            "AddPartitionsToTxnTopicResult",
            name=each.name,
            results_by_partition=tuple(
                call.make(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=number,
                    partition_error_code=codes.get(TopicPartition(each.name, number), 0),
                )
                for number in each.partitions
            ),
        )
        for each in topics
    )
