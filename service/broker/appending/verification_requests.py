"""Asks a transaction's coordinator whether partitions are in the transaction, or asks it to add them (KIP-890)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import NotCoordinator, ProducerFenced, TransactionAbortable
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    AddPartitions,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.errors import InvalidProducerEpoch, InvalidTransactionState, LogError
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: The client of these requests is the broker itself.
_BROKER = Caller("User:ANONYMOUS", "", "")


class AsksCoordinator(Protocol):
    """The one method of the contract's `Transactions` that verification calls."""

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]: ...


def check_decided_before(partition: Partition, producer: ProducerIdAndEpoch) -> None:
    """Raises NotEnoughReplicas if the producer has a transaction of an older epoch that was open here before this leadership
    began. The marker of that transaction was most likely lost with a disk. The caller then sends no request: the coordinator
    would add the partition to the producer's present transaction but could not end that transaction here, and every tool would
    mistake the earlier transaction for the present one."""
    partition.log.hot.end.producers.check_decided(*producer, below=partition.state.epoch_start)


def asking(
    coordinator: AsksCoordinator,
    transaction: ProducerTransaction,
    producer: ProducerIdAndEpoch,
    partitions: Sequence[TopicPartition],
) -> asyncio.Future[PartitionsAdded]:
    """Asks the coordinator to add the partitions (version 2 of transactions, whose clients do not add them) or only to verify
    them (earlier versions). Raises nothing: every waiting batch must get an answer."""
    request = AddPartitions(
        transaction.id,
        producer,
        partitions,
        verify_only=transaction.version < EPOCH_PER_TRANSACTION,
        client_version=transaction.version,
    )
    try:
        return coordinator.add_partitions(request, _BROKER)
    except Exception as error:  # noqa: BLE001 - see above
        failed: asyncio.Future[PartitionsAdded] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        return failed


def refusals(
    answer: asyncio.Future[PartitionsAdded], partitions: Sequence[TopicPartition], transaction: ProducerTransaction
) -> dict[TopicPartition, LogError]:
    """The partitions that the coordinator refused, with the errors for the producer."""
    if answer.cancelled():
        error: LogError | None = NotCoordinator("the coordinator was stopped")
    elif (failure := answer.exception()) is not None:
        if not isinstance(failure, LogError):
            events.error(log, "append.defect", partition=partitions[0], defect=failure)
        error = failure if isinstance(failure, LogError) else LogError(repr(failure))
    else:
        error, some = answer.result()
        if error is None:
            return {partition: _produce_error(each, transaction) for partition, each in some}
    assert error is not None
    return dict.fromkeys(partitions, _produce_error(error, transaction))


def _produce_error(error: LogError, transaction: ProducerTransaction) -> LogError:
    """Maps coordinator errors to produce errors (Kafka: AddPartitionsToTxnManager)."""
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch(str(error))
    if isinstance(error, TransactionAbortable) and not transaction.knows_abortable:
        return InvalidTransactionState(str(error))
    return error
