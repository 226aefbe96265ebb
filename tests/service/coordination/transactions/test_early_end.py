"""Commits that come before the records of their transaction."""

from __future__ import annotations

from grpc_api.contract.coordinator_errors import ConcurrentTransactions
from service.coordination.transactions.transaction import EARLY_END_MS
from storage_tiers.errors import InvalidTransactionState
from tests.service.coordination.transactions.driver import A, Coordinator


def test_a_commit_that_overtakes_its_records_is_refused_with_a_retriable_error() -> None:
    """Kafka's Java producer sends EndTxn before the transaction's records if its threads meet at the wrong moment, and
    INVALID_TXN_STATE is fatal to it."""
    x = Coordinator()
    producer = x.producer()
    assert x.add(producer, A).error is None
    following = x.end(producer).producer
    assert isinstance(x.end(following).error, ConcurrentTransactions)  # the markers are not written yet
    x.mark()
    assert isinstance(x.end(following).error, ConcurrentTransactions)
    x.wait(EARLY_END_MS - 1)
    assert isinstance(x.end(following).error, ConcurrentTransactions)
    assert x.end(producer).producer == following  # a client may still repeat the last commit
    assert x.add(following, A).error is None
    assert x.end(following).producer == (101, 2)


def test_a_commit_without_records_is_refused_once_they_are_late() -> None:
    x = Coordinator()
    following = x.committed(x.producer(), A)
    x.wait(EARLY_END_MS)
    assert isinstance(x.end(following).error, InvalidTransactionState)
    x.now -= 60_000  # the clock stepped back
    assert isinstance(x.end(following).error, InvalidTransactionState)
