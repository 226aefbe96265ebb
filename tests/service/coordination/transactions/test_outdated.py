"""A transaction shard with wrong state: its newest records, or those of its transactions, are lost, or its clock was
wrong.
"""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import ConcurrentTransactions, InvalidProducerIdMapping, ProducerFenced
from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.coordination.outcome import Outcome
from service.coordination.transactions.transaction import OpenPartitions
from storage_tiers.types import FENCING_EPOCH
from tests.service.coordination.transactions.driver import DAY, A, B, C, Coordinator
from tests.service.coordination.whole_values import finish

NONE: OpenPartitions = {}


def end_outdated(x: Coordinator, open_in: OpenPartitions = NONE) -> Outcome:
    outcome = x.shard.end_outdated(x.now, name="x", open_in=open_in)
    x.keep(outcome)
    return outcome


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("transactions", [0, 2])
def test_an_idle_id_gets_another_producer_id(transactions: int, is_restarted: bool) -> None:
    x = Coordinator()
    producer = x.producer()
    for _ in range(transactions):
        producer = x.committed(producer, A)
    assert x.shard.outdate(None, {}) == ["x"]
    # Whatever the lost records were, no client continues as the old producer, even before that is recorded.
    for epoch in range(producer.epoch, producer.epoch + 3):
        assert isinstance(x.add(producer._replace(epoch=epoch), A).error, ProducerFenced)
        assert isinstance(x.end(producer._replace(epoch=epoch)).error, ProducerFenced)
        assert isinstance(x.init(expected=producer._replace(epoch=epoch)).error, ProducerFenced)
    assert len(end_outdated(x).records) == 1
    assert end_outdated(x).records == []
    if is_restarted:
        x.restart()
    after = x.producer()
    assert after.id != producer.id
    assert isinstance(x.add(producer, A).error, InvalidProducerIdMapping)
    x.committed(after, B)
    assert end_outdated(x).records == []  # the id has another producer now


def test_an_open_transaction_is_aborted_wherever_its_producer_has_one() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    assert x.shard.outdate(None, {}) == ["x"]
    assert isinstance(x.end(producer).error, ProducerFenced)
    end_outdated(x, {producer.id: frozenset({B}), producer.id + 1: frozenset({C})})
    assert x.mark() == [Markers("x", producer._replace(epoch=FENCING_EPOCH), False, [A, B], 2)]
    assert x.status == "CompleteAbort"
    assert x.producer().id != producer.id


def test_an_idle_id_whose_producer_has_a_transaction_is_open_until_that_is_aborted() -> None:
    x = Coordinator()
    producer = x.committed(x.producer(), A)
    x.shard.outdate(None, {})
    end_outdated(x, {producer.id: frozenset({B})})
    waiter = x.init()
    assert x.mark() == [Markers("x", producer._replace(epoch=FENCING_EPOCH), False, [B], 2)]
    assert x.answers[waiter].producer.id != producer.id


@pytest.mark.parametrize("state", ["CompleteCommit", "Ongoing", "PrepareCommit"])
def test_no_producer_begins_before_what_the_outdated_one_has_open_is_aborted(state: str) -> None:
    x = Coordinator()
    producer = x.committed(x.producer(), A)
    if state != "CompleteCommit":
        x.add(producer, A)
    if state == "PrepareCommit":
        x.end(producer)
    x.shard.outdate(None, {})
    x.mark()
    assert isinstance(x.init().error, ConcurrentTransactions)
    end_outdated(x, {producer.id: frozenset({B})})
    waiter = x.init()
    assert [B in each.partitions for each in x.mark()] == [True]
    assert x.answers[waiter].producer.id != producer.id


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_completed_first(commit: bool) -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.end(producer, commit=commit)
    assert x.shard.outdate(None, {}) == ["x"]
    assert end_outdated(x).records == []
    assert x.shard.is_outdated("x")
    assert x.mark() == [Markers("x", ProducerIdAndEpoch(producer.id, 1), commit, [A], 2)]
    assert end_outdated(x).records == []
    assert not x.shard.is_outdated("x")
    assert isinstance(x.add(producer._replace(epoch=1), A).error, ProducerFenced)
    x.restart()
    assert x.producer().id != producer.id


def test_a_producer_that_claims_the_epoch_for_fencing_is_fenced() -> None:
    x = Coordinator()
    producer = x.committed(x.producer(), A)
    x.shard.outdate(None, {})
    end_outdated(x)
    x.restart()
    assert isinstance(x.init(expected=producer._replace(epoch=FENCING_EPOCH)).error, ProducerFenced)
    assert x.producer().id != producer.id


def test_only_transactions_with_a_lost_partition_are_aborted() -> None:
    x = Coordinator()
    open_one, other, idle = x.producer(), x.producer("other"), x.producer("idle")
    x.add(open_one, A, B)
    x.add(other, B, name="other")
    assert x.shard.outdate({A}, {}) == ["x"]
    end_outdated(x)
    assert [each.partitions for each in x.mark()] == [[A, B]]
    assert x.end(other, name="other").error is None
    assert x.add(idle, A, name="idle").error is None


def test_an_id_of_which_a_partition_knows_a_later_epoch_has_lost_records() -> None:
    x = Coordinator()
    producer = x.committed(x.producer(), A)
    other = x.producer("other")
    epochs = {producer.id: producer.epoch, other.id: other.epoch, 7: 7}
    assert x.shard.outdate({A, C}, epochs) == []
    assert x.shard.outdate({A, C}, {**epochs, producer.id: producer.epoch + 1}) == ["x"]
    end_outdated(x)
    assert x.producer().id != producer.id
    assert x.add(other, A, name="other").error is None


def test_an_id_that_is_gone_is_passed_over() -> None:
    x = Coordinator()
    assert x.shard.outdate(None, {}) == []
    assert end_outdated(x).records == []
    assert not x.shard.is_outdated("x")


def test_a_transaction_that_began_by_a_clock_that_was_ahead_times_out() -> None:
    x = Coordinator()
    producer = x.producer(timeout_ms=10_000)
    x.add(producer, A)
    x.now -= DAY
    x.restart()
    x.wait(10_000)
    assert x.status == "PrepareAbort"


@pytest.mark.parametrize(("decided", "written"), [(9 * DAY, 1), (1, 9 * DAY)])
def test_an_id_is_idle_since_the_later_of_its_two_times(decided: int, written: int) -> None:
    """A clock that was behind may have set either time."""
    x = Coordinator()
    x.now = decided
    x.producer()
    (record,) = x.log
    x.shard, x.now = x.new_shard(), 9 * DAY + 1
    x.shard.load(record.key, record.value, x.now, written_ms=written)
    x.keep(finish(x.shard.loaded(x.now)))
    x.wait(0)
    assert x.status == "Empty"
