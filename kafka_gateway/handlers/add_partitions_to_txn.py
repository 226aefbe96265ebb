"""AddPartitionsToTxn, key 24, versions 0 to 5: adds partitions to a producer's transaction. From v4 on, brokers send it for
many transactions at once. With `verify_only` a broker only asks whether the partitions are in the transactions (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpc_api.contract.request_parts import is_long, parts_of
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, AddPartitions, PartitionsAdded, ProducerIdAndEpoch
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Delayed, Fields, ended
from kafka_gateway.transaction_errors import fenced_code
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

#: The first version whose clients know PRODUCER_FENCED.
KNOWS_FENCED = 2
#: The first version that can name many transactions.
BATCHED = 4


def serve(request: Any, call: Call) -> Any:
    if call.messages.version >= BATCHED:
        return _batched(request, call)
    topics = request.v3_and_below_topics
    if is_long(topics, (len(each.partitions) for each in topics)):
        return _long(request, call)
    future = call.core.transactions.add_partitions(_asked(request, _partitions(topics)), call.caller)
    return Delayed(future, lambda done: {"results_by_topic_v3_and_below": _topics(call, topics, _codes(done, call))})


async def _long(request: Any, call: Call) -> Fields:
    topics = request.v3_and_below_topics
    partitions = await _partitions_in_slices(topics, call)
    done = await call.waiting(call.core.transactions.add_partitions(_asked(request, partitions), call.caller))
    return {"results_by_topic_v3_and_below": _topics(call, topics, await _codes_in_slices(done, call))}


def _asked(request: Any, partitions: Sequence[TopicPartition]) -> AddPartitions:
    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    return AddPartitions(request.v3_and_below_transactional_id, producer, partitions)


async def _batched(request: Any, call: Call) -> Fields:
    results = []
    async for each in call.each(request.transactions):
        asked = AddPartitions(
            each.transactional_id,
            ProducerIdAndEpoch(each.producer_id, each.producer_epoch),
            await _partitions_in_slices(each.topics, call),
            verify_only=each.verify_only,
            client_version=EPOCH_PER_TRANSACTION,
        )
        done = await ended(call.waiting(call.core.transactions.add_partitions(asked, call.caller)))
        if isinstance(done, Exception):
            done = PartitionsAdded(done if isinstance(done, LogError) else LogError(repr(done)))
        topics = _topics(call, each.topics, await _codes_in_slices(done, call))
        results.append(
            call.make("AddPartitionsToTxnResult", transactional_id=each.transactional_id, topic_results=topics)
        )
    return {"error_code": 0, "results_by_transaction": tuple(results)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if call.messages.version >= BATCHED:
        return {"error_code": code, "results_by_transaction": ()}
    topics = request.v3_and_below_topics
    return {"results_by_topic_v3_and_below": _topics(call, topics, Codes({}, code))}


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.name, number) for each in topics for number in each.partitions]


async def _partitions_in_slices(topics: Sequence[Any], call: Call) -> list[TopicPartition]:
    """Returns the partitions without duplicates."""
    found: dict[TopicPartition, None] = {}
    for part in parts_of((each, each.partitions) for each in topics):
        for _, topic, partitions in part:
            found.update(dict.fromkeys(TopicPartition(topic.name, number) for number in partitions))
        await call.turn.rest_if_over()
    return list(found)


class Codes(NamedTuple):
    """Error codes of partitions; all other partitions have the code `rest`."""

    by_partition: Mapping[TopicPartition, int]
    rest: int = ErrorCode.NONE


def _codes(done: PartitionsAdded, call: Call) -> Codes:
    if done.error is not None:
        return Codes({}, fenced_code(done.error, call.messages.version, KNOWS_FENCED))
    return Codes({partition: code_of(error) for partition, error in done.errors})


async def _codes_in_slices(done: PartitionsAdded, call: Call) -> Codes:
    if done.error is not None:
        return _codes(done, call)
    return Codes({partition: code_of(error) async for partition, error in call.each(done.errors)})


def _topics(call: Call, topics: Sequence[Any], codes: Codes) -> Iterator[Any]:
    for each in topics:
        rows = _rows(call, each.name, each.partitions, codes)
        yield call.make("AddPartitionsToTxnTopicResult", name=each.name, results_by_partition=rows)


def _rows(call: Call, topic: str, partitions: Sequence[int], codes: Codes) -> Iterator[Any]:
    for number in partitions:
        code = codes.by_partition.get(TopicPartition(topic, number), codes.rest)
        yield call.make("AddPartitionsToTxnPartitionResult", partition_index=number, partition_error_code=code)
