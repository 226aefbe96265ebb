"""The outcome of each transactional id's last transaction, for partitions that lost its marker together with a disk.

Pure. With `transaction.version` 2, each transaction has its own epoch, and its marker has the next one. So an outcome known
under epoch E + 1 is that of the transaction that is open under epoch E.

Not promised: the outcomes of earlier transactions, and of transactions before version 2, where all transactions of a producer
share one epoch. After a restart the outcome is also unknown if the next transaction has begun, or if the abort was not
completed yet, because the id's newest record does not show it. These transactions stay open until an operator decides them.
"""

from __future__ import annotations

from collections.abc import Iterable

from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, Markers, ProducerIdAndEpoch
from service.coordination.transaction_records import TransactionStatus
from service.coordination.transactions.transaction import (
    COMPLETED,
    OpenTransactions,
    Transaction,
    in_order,
)
from storage_tiers.types import FENCING_EPOCH, NO_PRODUCER_ID


class LastOutcomes:
    """The markers of each id's last transaction. They name no partitions, because the record of a completed transaction has
    none."""

    def __init__(self) -> None:
        self._markers: dict[int, Markers] = {}
        self._producers: dict[str, int] = {}

    def keep(self, known: Transaction) -> None:
        """Called after the id's state changes, when its last transaction may have ended."""
        if known.status not in COMPLETED or known.client_version < EPOCH_PER_TRANSACTION or known.is_outdated:
            return
        producer = known.producer
        if known.previous_id != NO_PRODUCER_ID and not producer.epoch:  # the transaction had the id's last epoch
            producer = ProducerIdAndEpoch(known.previous_id, FENCING_EPOCH)
        self.forget(known.transactional_id)
        self._producers[known.transactional_id] = producer.id
        is_commit = known.status is TransactionStatus.COMPLETE_COMMIT
        self._markers[producer.id] = Markers(known.transactional_id, producer, is_commit, (), known.client_version)

    def forget(self, transactional_id: str) -> None:
        self._markers.pop(self._producers.pop(transactional_id, NO_PRODUCER_ID), None)

    def lost(self, open_in: OpenTransactions) -> list[Markers]:
        """The markers that partitions have lost: those of open transactions whose outcome is known here. Iterates over the
        smaller collection, because every shard is called with all open transactions of the node."""
        known: Iterable[Markers] = self._markers.values()
        if len(open_in) < len(self._markers):
            ids = dict.fromkeys(each.id for each in open_in)
            known = (self._markers[each] for each in ids if each in self._markers)
        found = []
        for markers in known:
            partitions = open_in.get(markers.producer._replace(epoch=markers.producer.epoch - 1))
            if partitions:
                found.append(markers._replace(partitions=in_order(partitions)))
        return found
