"""The errors with which a transaction shard refuses requests, worded for the producer's operator.

Pure. Checks of a producer and their order are those of Kafka 4.2.1's TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Collection

from grpc_api.contract.coordinator_errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    CoordinatorRecordTooLarge,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionAbortable,
)
from grpc_api.contract.transactions import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerInitialized,
    TransactionEnded,
)
from service.coordination.transaction_records import TransactionStatus
from service.coordination.transactions.transaction import (
    NAMES,
    PREPARED,
    Transaction,
    TransactionEvent,
)
from storage_tiers.errors import InvalidRequest, InvalidTransactionState, LogError
from storage_tiers.types import FENCING_EPOCH, TopicPartition


def answer_to(event: TransactionEvent, error: LogError) -> object:
    if isinstance(event, InitProducer):
        return ProducerInitialized(error)
    return PartitionsAdded(error) if isinstance(event, AddPartitions) else TransactionEnded(error)


def producer_error(known: Transaction | None, transactional_id: str, producer: ProducerIdAndEpoch) -> LogError | None:
    if not transactional_id:
        return InvalidRequest("the transactional id is empty")
    if known is None or known.producer.id != producer.id:
        return no_mapping(transactional_id, producer)
    is_current = known.producer.epoch == producer.epoch < FENCING_EPOCH
    return None if is_current else fenced(transactional_id, producer)


def init_error(known: Transaction | None, event: InitProducer, max_timeout_ms: int) -> LogError | None:
    """The error if InitProducerId is refused."""
    if not event.transactional_id:
        return InvalidRequest("the transactional id is empty")
    if not 0 < event.timeout_ms <= max_timeout_ms:
        return InvalidTransactionTimeout(
            f"transaction.timeout.ms is {event.timeout_ms}; set it to 1 to {max_timeout_ms}, or raise "
            "transaction.max.timeout.ms of the broker"
        )
    if known is None:
        return None
    is_late = event.expected != NO_PRODUCER and event.expected.epoch != known.producer.epoch
    if not known.is_known(event.expected) or (known.status is TransactionStatus.ONGOING and is_late):
        return fenced(event.transactional_id, event.expected)
    # Otherwise the next producer would get another id, and the outdated producer's transaction would stay open.
    is_ending = known.status in PREPARED or (known.is_outdated and event.expected == NO_PRODUCER)
    return concurrent(known) if is_ending else None


def no_mapping(transactional_id: str, producer: ProducerIdAndEpoch) -> InvalidProducerIdMapping:
    return InvalidProducerIdMapping(
        f"{transactional_id!r} has no producer {producer.id}: the id expired or was reassigned; call InitProducerId again"
    )


def fenced(transactional_id: str, producer: ProducerIdAndEpoch) -> ProducerFenced:
    return ProducerFenced(
        f"{transactional_id!r}: epoch {producer.epoch} of producer {producer.id} is not the current one, because a newer "
        "producer uses the id; stop this one"
    )


def concurrent(known: Transaction) -> ConcurrentTransactions:
    return ConcurrentTransactions(f"{known.transactional_id!r}: its last transaction is being completed; retry")


def not_ended(known: Transaction, event: EndTransaction) -> TransactionEnded:
    wanted = "commit" if event.commit else "abort"
    why = f"{known.transactional_id!r} cannot {wanted}: its transaction is {NAMES[known.status]}"
    return TransactionEnded(InvalidTransactionState(why))


def not_added(transactional_id: str, partition: TopicPartition) -> TransactionAbortable:
    return TransactionAbortable(
        f"{partition} is not in the open transaction of {transactional_id!r}; abort and begin again"
    )


def no_room(transactional_id: str) -> CoordinatorNotAvailable:
    return CoordinatorNotAvailable(
        f"{transactional_id!r}: the transactional ids of this broker use all memory reserved for them; retry"
    )


def too_large(known: Transaction, most: int, more: Collection[TopicPartition] = ()) -> CoordinatorRecordTooLarge | None:
    """The error if the id's record, with these partitions added, cannot be written. A record that the log refuses would drop
    the shard, with all its ids."""
    if known.surely_fits(most, more):
        return None
    size = known.record_bytes(more)
    if size <= most:
        return None
    return CoordinatorRecordTooLarge(
        f"{known.transactional_id!r}: its transaction makes a record of {size} bytes, more than {most}; use fewer partitions "
        "in one transaction, or raise max.message.bytes of __transaction_state"
    )
