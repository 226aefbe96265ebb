"""Requests and answers of a transaction coordinator as messages.

`*_message` encode the contract's values, `*_of` decode.

Numbers that Kafka's formats cannot hold are refused here with InvalidRequest: an epoch has 16 bits in a record batch. Messages
do not carry `spare_producer_id`; the receiving node sets its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER,
    AddOffsets,
    AddPartitions,
    DescribedTransaction,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    Markers,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerInitialized,
    TransactionEnded,
    TransactionsListed,
)
from grpc_api.messages.errors import detail_of, error_of
from grpc_api.messages.groups import caller_message, maybe, maybe_detail, maybe_error
from grpc_api.messages.log import check_count
from grpc_api.proto import transactions_pb2 as pb
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import TopicPartition

LAST_EPOCH = (1 << 15) - 1
#: The contract's number for transactions of any age.
_ANY = -1


# --- producers and partitions -----------------------------------------------------------------------------------------
def producer_message(producer: ProducerIdAndEpoch) -> pb.ProducerIdentity:
    return pb.ProducerIdentity(id=producer.id, epoch=producer.epoch)


def _maybe_producer_message(producer: ProducerIdAndEpoch) -> pb.ProducerIdentity | None:
    return None if producer == NO_PRODUCER else producer_message(producer)


def producer_of(message: pb.ProducerIdentity) -> ProducerIdAndEpoch:
    """Raises InvalidRequest for an id or an epoch that no producer has."""
    if message.id < 0 or not 0 <= message.epoch <= LAST_EPOCH:
        raise InvalidRequest(
            f"no producer has the id {message.id} and the epoch {message.epoch}; take both from InitProducer"
        )
    return ProducerIdAndEpoch(message.id, message.epoch)


def _named_producer_of(message: pb.ProducerIdentity) -> ProducerIdAndEpoch:
    """The producer that a client of another broker named. If no producer has that id and epoch, the coordinator refuses the
    request, as it does for its own clients. Raises InvalidRequest for an epoch of more than 16 bits."""
    if not -LAST_EPOCH - 1 <= message.epoch <= LAST_EPOCH:
        return producer_of(message)
    return ProducerIdAndEpoch(message.id, message.epoch)


def _answered_producer(message: pb.InitTransactionalProducerResponse | pb.EndTransactionResponse) -> ProducerIdAndEpoch:
    if not message.HasField("producer"):
        return NO_PRODUCER
    return ProducerIdAndEpoch(message.producer.id, message.producer.epoch)


def partition_messages(partitions: Iterable[TopicPartition]) -> list[pb.TransactionPartition]:
    return [pb.TransactionPartition(topic=topic, partition=partition) for topic, partition in partitions]


def _partitions_of(messages: Iterable[pb.TransactionPartition]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in messages]


def refused_message(refused: tuple[TopicPartition, LogError]) -> pb.RefusedPartition:
    (topic, partition), error = refused
    return pb.RefusedPartition(topic=topic, partition=partition, error=detail_of(error))


def refused_of(messages: Iterable[pb.RefusedPartition]) -> list[tuple[TopicPartition, LogError]]:
    return [(TopicPartition(each.topic, each.partition), error_of(each.error)) for each in messages]


# --- a producer's requests --------------------------------------------------------------------------------------------
def init_message(asked: InitProducer, caller: Caller) -> pb.InitTransactionalProducerRequest:
    return pb.InitTransactionalProducerRequest(
        transactional_id=asked.transactional_id,
        timeout_ms=asked.timeout_ms,
        expected=_maybe_producer_message(asked.expected),
        caller=caller_message(caller),
    )


def init_of(message: pb.InitTransactionalProducerRequest) -> InitProducer:
    if not message.transactional_id:
        raise InvalidRequest("the transactional id is empty; Log.InitProducerId is for an idempotent producer")
    expected = producer_of(message.expected) if message.HasField("expected") else NO_PRODUCER
    return InitProducer(message.transactional_id, message.timeout_ms, expected)


def initialized_message(done: ProducerInitialized) -> pb.InitTransactionalProducerResponse:
    return pb.InitTransactionalProducerResponse(
        error=maybe_detail(done.error), producer=_maybe_producer_message(done.producer)
    )


def initialized_of(message: pb.InitTransactionalProducerResponse) -> ProducerInitialized:
    return ProducerInitialized(maybe_error(message), _answered_producer(message))


def add_partitions_message(asked: AddPartitions, caller: Caller) -> pb.AddPartitionsToTransactionRequest:
    return pb.AddPartitionsToTransactionRequest(
        transactional_id=asked.transactional_id,
        producer=producer_message(asked.producer),
        partitions=partition_messages(asked.partitions),
        verify_only=asked.verify_only,
        transaction_version=asked.client_version,
        caller=caller_message(caller),
    )


def add_partitions_of(message: pb.AddPartitionsToTransactionRequest) -> AddPartitions:
    check_count(len(message.partitions))
    is_a_brokers = message.verify_only or message.transaction_version >= EPOCH_PER_TRANSACTION
    producer = (_named_producer_of if is_a_brokers else producer_of)(message.producer)
    return AddPartitions(
        message.transactional_id,
        producer,
        _partitions_of(message.partitions),
        message.verify_only,
        message.transaction_version,
    )


def add_offsets_message(asked: AddOffsets, caller: Caller) -> pb.AddOffsetsToTransactionRequest:
    return pb.AddOffsetsToTransactionRequest(
        transactional_id=asked.transactional_id,
        producer=producer_message(asked.producer),
        group=asked.group,
        transaction_version=asked.client_version,
        caller=caller_message(caller),
    )


def add_offsets_of(message: pb.AddOffsetsToTransactionRequest) -> AddOffsets:
    return AddOffsets(
        message.transactional_id, producer_of(message.producer), message.group, message.transaction_version
    )


def added_of(message: pb.AddedToTransactionResponse) -> PartitionsAdded:
    return PartitionsAdded(maybe_error(message), refused_of(message.refused))


def end_message(asked: EndTransaction, caller: Caller) -> pb.EndTransactionRequest:
    return pb.EndTransactionRequest(
        transactional_id=asked.transactional_id,
        producer=producer_message(asked.producer),
        commit=asked.commit,
        transaction_version=asked.client_version,
        caller=caller_message(caller),
    )


def end_of(message: pb.EndTransactionRequest) -> EndTransaction:
    return EndTransaction(
        message.transactional_id, producer_of(message.producer), message.commit, message.transaction_version
    )


def ended_message(done: TransactionEnded) -> pb.EndTransactionResponse:
    return pb.EndTransactionResponse(error=maybe_detail(done.error), producer=_maybe_producer_message(done.producer))


def ended_of(message: pb.EndTransactionResponse) -> TransactionEnded:
    return TransactionEnded(maybe_error(message), _answered_producer(message))


# --- administration ---------------------------------------------------------------------------------------------------
def markers_message(markers: Markers, coordinator_epoch: int, caller: Caller) -> pb.WriteTransactionMarkersRequest:
    return pb.WriteTransactionMarkersRequest(
        producer=producer_message(markers.producer),
        commit=markers.commit,
        partitions=partition_messages(markers.partitions),
        transaction_version=markers.version,
        coordinator_epoch=coordinator_epoch,
        caller=caller_message(caller),
    )


def markers_of(message: pb.WriteTransactionMarkersRequest) -> Markers:
    check_count(len(message.partitions))
    return Markers(
        "",
        producer_of(message.producer),
        message.commit,
        _partitions_of(message.partitions),
        message.transaction_version,
    )


def list_message(asked: ListTransactions, caller: Caller) -> pb.ListTransactionsRequest:
    return pb.ListTransactionsRequest(
        states=sorted(asked.states),
        producer_ids=sorted(asked.producer_ids),
        duration_ms=None if asked.duration_ms == _ANY else asked.duration_ms,
        pattern=asked.pattern,
        caller=caller_message(caller),
    )


def list_of(message: pb.ListTransactionsRequest) -> ListTransactions:
    check_count(len(message.producer_ids), of="producers")
    check_count(len(message.states), of="states")
    duration_ms = message.duration_ms if message.HasField("duration_ms") else _ANY
    return ListTransactions(
        frozenset(message.states), frozenset(message.producer_ids), duration_ms, maybe(message, "pattern")
    )


def listed_message(row: ListedTransaction) -> pb.ListedTransaction:
    return pb.ListedTransaction(transactional_id=row.transactional_id, producer_id=row.producer_id, state=row.state)


def listed_of(message: pb.ListTransactionsResponse) -> TransactionsListed:
    rows = [ListedTransaction(each.transactional_id, each.producer_id, each.state) for each in message.transactions]
    return TransactionsListed(maybe_error(message), rows)


def described_message(found: DescribedTransaction) -> pb.DescribeTransactionResponse:
    """The answer without its partitions."""
    return pb.DescribeTransactionResponse(
        error=maybe_detail(found.error),
        transactional_id=found.transactional_id,
        state=found.state,
        producer=producer_message(found.producer),
        timeout_ms=found.timeout_ms,
        start_ms=found.start_ms,
    )


def described_of(message: pb.DescribeTransactionResponse) -> DescribedTransaction:
    return DescribedTransaction(
        maybe_error(message),
        message.transactional_id,
        message.state,
        ProducerIdAndEpoch(message.producer.id, message.producer.epoch),
        message.timeout_ms,
        message.start_ms,
        _partitions_of(message.partitions),
    )
