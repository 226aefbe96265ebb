"""Asks a transaction's coordinator whether partitions are in the transaction, or adds them to it (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    AddPartitions,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from storage_tiers.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogError,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
)
from storage_tiers.types import TopicPartition

#: The broker itself asks.
_BROKER = Caller("User:ANONYMOUS", "", "")


class AsksCoordinator(Protocol):
    """The contract's `Transactions`."""

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]: ...


def asking(
    coordinator: AsksCoordinator,
    transaction: ProducerTransaction,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
) -> asyncio.Future[PartitionsAdded]:
    """Adds the partitions in version 2 of transactions, where clients do not; asks whether they are there before."""
    request = AddPartitions(
        transaction.id,
        producer,
        partitions,
        verify_only=transaction.version < EPOCH_PER_TRANSACTION,
        client_version=transaction.version,
    )
    return coordinator.add_partitions(request, _BROKER)


def refusals(
    answer: asyncio.Future[PartitionsAdded], partitions: Sequence[TopicPartition], transaction: ProducerTransaction
) -> dict[TopicPartition, LogError]:
    """The partitions that are not in the transaction, by the answer of the coordinator, and what the producer is told."""
    if answer.cancelled():
        error: LogError | None = NotCoordinator("the coordinator was stopped")
    elif (failure := answer.exception()) is not None:
        error = failure if isinstance(failure, LogError) else LogError(repr(failure))
    else:
        error, some = answer.result()
        if error is None:
            return {partition: _told(each, transaction) for partition, each in some}
    assert error is not None
    return dict.fromkeys(partitions, _told(error, transaction))


def _told(error: LogError, transaction: ProducerTransaction) -> LogError:
    """In the words of the APIs of partitions (Kafka: AddPartitionsToTxnManager)."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and not transaction.knows_abortable:
        return InvalidTransactionState(str(error))
    return error
