"""Transactions whose records are not committed, as readers and the writers of markers see them."""

from __future__ import annotations

from itertools import chain

from grpc_api.contract.coordinator_errors import TransactionalIdNotFound
from grpc_api.contract.transactions import (
    ListTransactions,
    ProducerIdAndEpoch,
)
from service.coordination.counts import TransactionCounts
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from tests.service.coordination.transactions.driver import DAY, A, B, Coordinator
from tests.service.coordination.whole_values import finish


def test_markers_of_a_decision_that_was_loaded_wait_until_it_is_committed() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.end(producer)
    x.shard = TransactionShard(TransactionSettings())
    for number, record in enumerate(x.log):
        x.shard.load(record.key, record.value, x.now, is_committed=number < 2)
    x.shard.committed(2)
    assert (len(x.log), finish(x.shard.loaded(x.now)).records, x.shard.prepared()) == (3, [], [])
    x.shard.committed(3)
    assert [each.producer for each in x.shard.prepared()] == [ProducerIdAndEpoch(101, 1)]


def test_an_expired_id_is_seen_until_its_tombstone_is_committed() -> None:
    x = Coordinator()
    x.producer()
    x.now += 7 * DAY
    outcome = x.shard.tick(x.now)
    assert [each.value for each in outcome.records] == [None]
    assert (x.status, [row.transactional_id for row in chain(*x.shard.list(ListTransactions(), x.now))]) == (
        "Empty",
        ["x"],
    )
    x.keep(outcome)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)
    assert list(chain(*x.shard.list(ListTransactions(), x.now))) == []


def test_a_decision_that_a_later_record_completes_asks_for_no_markers_after_a_load() -> None:
    """The markers would end the next transaction, and abort it."""
    x = Coordinator()
    following = x.committed(x.producer(), A)
    x.add(following, B)
    x.shard = TransactionShard(TransactionSettings())
    for number, record in enumerate(x.log):
        x.shard.load(record.key, record.value, x.now, is_committed=number < 2)
    x.shard.committed(2)
    finish(x.shard.loaded(x.now))
    x.shard.committed(len(x.log))
    assert (x.status, x.shard.prepared()) == ("Ongoing", [])


def test_ended_transactions_are_counted_by_how_they_ended() -> None:
    x = Coordinator()
    counts = TransactionCounts()
    x.shard = TransactionShard(TransactionSettings(), counts)
    following = x.committed(x.committed(x.producer(), A), B)
    assert (counts.committed, counts.aborted) == (2, 0)
    x.add(following, A)
    x.end(following, commit=False)
    x.mark()
    assert (counts.committed, counts.aborted) == (2, 1)
