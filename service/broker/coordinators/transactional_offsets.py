"""Lets a producer's transaction begin in a partition of `__consumer_offsets`, before its offsets are committed there.

As clients' batches do in `append_lane.py`; the order of a producer's commits needs no queue, since they have no sequences.
"""

from __future__ import annotations

import asyncio

from grpc_api.contract.groups import TxnOffsetCommit
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, ProducerIdAndEpoch
from service.broker.appending.verification_requests import AsksCoordinator, asking, refusals
from service.broker.coordinators.ports import LedPartitions
from service.broker.partition.partition import Partition
from storage_tiers.records.batch import NO_SEQUENCE
from storage_tiers.types import TopicPartition


class TransactionalOffsets:
    """Verifies transactions in partitions of `__consumer_offsets`, as the append lane does for those of other topics."""

    def __init__(self, partitions: LedPartitions[Partition], coordinator: AsksCoordinator) -> None:
        self._partitions = partitions
        self._coordinator = coordinator

    async def enter(self, at: TopicPartition, commit: TxnOffsetCommit) -> None:
        """Returns once the commit may be written to this partition. Raises what the coordinator refuses it with."""
        partition = self._partitions.get(at)
        producer, transaction = ProducerIdAndEpoch(commit.producer_id, commit.producer_epoch), commit.transaction
        if partition.is_in_transaction(*producer):
            return
        adds = transaction.version >= EPOCH_PER_TRANSACTION
        verification = partition.verifications.begin(*producer, NO_SEQUENCE, adds=adds)
        try:
            answer = asking(self._coordinator, transaction, producer, (at,))
            await asyncio.wait((answer,))
            for error in refusals(answer, (at,), transaction).values():
                raise error
            partition.verifications.verified(verification)
        finally:
            partition.verifications.release(verification)
