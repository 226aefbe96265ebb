"""Lets a producer's transaction begin in a partition of `__consumer_offsets`, before its offsets are committed there.

`append_lane.py` does the same for batches of clients. A producer's offset commits have no sequence numbers, so no queue has to
keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.groups import TxnOffsetCommit
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, ProducerIdAndEpoch
from service.broker.appending.verification_requests import AsksCoordinator, asking, check_decided_before, refusals
from service.broker.coordinators.ports import LedPartitions
from service.broker.partition.partition import Partition
from storage_tiers.errors import NotEnoughReplicas
from storage_tiers.records.batch import NO_SEQUENCE
from storage_tiers.types import TopicPartition


class TransactionalOffsets:
    """Verifies transactions in partitions of `__consumer_offsets`, as the append lane does for those of other topics."""

    def __init__(self, partitions: LedPartitions[Partition], coordinator: AsksCoordinator) -> None:
        self._partitions = partitions
        self._coordinator = coordinator

    async def enter(self, at: TopicPartition, commit: TxnOffsetCommit) -> None:
        """Returns once the commit may be written to this partition. Raises the coordinator's refusal. While the marker of the
        producer's last transaction is lost there, raises CoordinatorNotAvailable, which clients retry."""
        partition = self._partitions.get(at)
        producer, transaction = ProducerIdAndEpoch(commit.producer_id, commit.producer_epoch), commit.transaction
        if partition.is_in_transaction(*producer):
            return
        with _retriable():
            check_decided_before(partition, producer)
        adds = transaction.version >= EPOCH_PER_TRANSACTION
        with _retriable():
            verification = partition.verifications.begin(*producer, NO_SEQUENCE, adds=adds)
        try:
            answer = asking(self._coordinator, transaction, producer, (at,))
            await asyncio.wait((answer,))
            for error in refusals(answer, (at,), transaction).values():
                raise error
            with _retriable():
                partition.log.hot.end.producers.check_decided(*producer)
            partition.verifications.verified(verification)
        finally:
            partition.verifications.release(verification)


@contextmanager
def _retriable() -> Iterator[None]:
    """Maps NOT_ENOUGH_REPLICAS to CoordinatorNotAvailable, as Kafka does for a commit. All clients retry
    CoordinatorNotAvailable, but librdkafka ends the transaction on NOT_ENOUGH_REPLICAS."""
    try:
        yield
    except NotEnoughReplicas as error:
        raise CoordinatorNotAvailable(str(error)) from error
