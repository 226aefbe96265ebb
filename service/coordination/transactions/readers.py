"""Transactional ids as readers see them: the rows of DescribeTransactions and ListTransactions.

Pure; answers are those of Kafka 4.2.1.
"""

from __future__ import annotations

from grpc_api.contract.coordinator_errors import TransactionalIdNotFound
from grpc_api.contract.transactions import DescribedTransaction, ListedTransaction, ListTransactions
from service.coordination.transactions.patterns import compiled
from service.coordination.transactions.transaction import IDLE, NAMES, Transaction, TransactionView, in_order
from storage_tiers.errors import InvalidRequest, LogError

#: An id as readers see it; None if they do not see it.
Seen = Transaction | TransactionView | None


def described(transactional_id: str, known: Seen) -> DescribedTransaction:
    if known is None:
        error: LogError = TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        if not transactional_id:
            error = InvalidRequest("the transactional id is empty")
        return DescribedTransaction(error, transactional_id)
    is_open = known.status not in IDLE
    return DescribedTransaction(
        None,
        transactional_id,
        NAMES[known.status],
        known.producer,
        known.timeout_ms,
        known.start_ms,
        in_order(known.partitions or ()) if is_open else (),
    )


class Wanted:
    """Selects the ids that a ListTransactions request includes. Raises InvalidRegularExpression as `patterns.compiled` does."""

    def __init__(self, request: ListTransactions, now_ms: int) -> None:
        self._request = request
        self._now_ms = now_ms
        self.pattern = None if request.pattern is None else compiled(request.pattern)

    def row(self, name: str, known: Seen) -> ListedTransaction | None:
        """The id's row; None if the request does not include it."""
        request = self._request
        if known is None:
            return None
        status = NAMES[known.status]
        if (
            (request.states and status not in request.states)
            or (request.producer_ids and known.producer.id not in request.producer_ids)
            or (known.start_ms >= 0 and 0 <= request.duration_ms >= self._now_ms - known.start_ms)
            or (self.pattern is not None and not self.pattern.matches(name))
        ):
            return None
        return ListedTransaction(name, known.producer.id, status)
