"""A transaction shard: producers, partitions, decisions, fencing, timeouts, and every crash between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRegularExpression,
    InvalidTransactionTimeout,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)
from grpc_api.contract.transactions import (
    EndTransaction,
    ListTransactions,
    Markers,
    ProducerIdAndEpoch,
)
from service.coordination.outcome import CoordinatorRecord
from service.coordination.transactions.shard import WAIT_MS, TransactionSettings, TransactionShard
from service.coordination.transactions.transaction import EARLY_END_MS, LAST_EPOCH
from storage_tiers.errors import InvalidRequest, InvalidTransactionState
from tests.service.coordination.transactions.driver import CALLER, DAY, A, B, C, Coordinator
from tests.service.coordination.whole_values import decode_value, finish


# --- one transaction --------------------------------------------------------------------------------------------------
def test_a_transaction_is_recorded_decided_marked_and_completed() -> None:
    x = Coordinator()
    producer = x.producer()
    assert producer == (101, 0)
    assert x.add(producer, A, C).error is None
    assert x.end(producer).producer == (101, 1)
    assert x.status == "PrepareCommit"
    assert x.shard.prepared() == [Markers("x", ProducerIdAndEpoch(101, 1), True, [A, C], 2)]
    assert x.shard.prepared() == []
    x.keep(x.shard.completed(Markers("x", ProducerIdAndEpoch(101, 1), True, [A, C], 2), x.now))
    assert x.status == "CompleteCommit"
    values = [decode_value(record.value) for record in x.log if record.value is not None]
    assert [(each.status.name, each.producer_epoch) for each in values] == [
        *(("EMPTY", 0), ("ONGOING", 0), ("PREPARE_COMMIT", 1), ("COMPLETE_COMMIT", 1)),
    ]
    assert [each.client_version for each in values] == [0, 2, 2, 2]


def test_below_version_2_the_epoch_stays() -> None:
    x = Coordinator()
    producer = x.producer()
    assert x.committed(producer, A, version=1) == producer
    assert x.end(producer, version=1).error is None  # the client repeats the commit, whose answer was lost
    assert isinstance(x.end(producer, commit=False, version=1).error, InvalidTransactionState)
    assert x.add(producer, B, version=1).error is None


def test_markers_are_wanted_only_once_the_decision_is_committed() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.shard.handle(EndTransaction("x", producer, True, 2, 1), CALLER, object(), x.now)
    x.shard.committed(x.shard.written - 1)
    assert x.shard.prepared() == []
    x.shard.committed(x.shard.written)
    assert len(x.shard.prepared()) == 1


def test_partitions_that_are_in_the_transaction_cost_no_record() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    records = len(x.log)
    assert x.add(producer, A).error is None
    assert len(x.log) == records
    x.add(producer, B)
    assert (len(x.log), x.shard.describe("x").partitions) == (records + 1, [A, B])


def test_a_broker_verifies_partitions_without_adding_them() -> None:
    x = Coordinator()
    producer = x.producer()
    (refused,) = x.add(producer, A, verify=True).errors
    assert (refused[0], type(refused[1])) == (A, TransactionAbortable)
    x.add(producer, A)
    assert x.add(producer, A, verify=True).errors == []
    assert [each for each, _ in x.add(producer, A, B, verify=True).errors] == [B]
    x.end(producer)
    late = x.add(ProducerIdAndEpoch(producer.id, producer.epoch + 1), A, verify=True)
    assert isinstance(late.error, ConcurrentTransactions)


# --- waiting for markers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [1, 2])
def test_the_next_transaction_waits_for_the_markers_of_the_last(version: int) -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A, version=version)
    after = x.end(producer, version=version).producer if version == 2 else x.end(producer, version=1) and producer
    waiter = x.add(after, B, version=version)
    assert waiter not in x.answers
    x.mark()
    assert x.answers.pop(waiter).error is None
    assert (x.status, x.shard.describe("x").partitions) == ("Ongoing", [B])


def test_a_request_that_waits_again_has_its_whole_time_again() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    added, begun = x.add(x.end(producer).producer, B), x.init()
    x.wait(WAIT_MS - 1)
    x.mark()
    assert x.answers.pop(added).error is None
    assert x.status == "PrepareAbort", "the second request fences the first one's transaction"
    x.wait(WAIT_MS - 1)
    assert begun not in x.answers
    x.wait(1)
    assert isinstance(x.answers.pop(begun).error, ConcurrentTransactions)


def test_a_request_waits_no_longer_than_its_bound() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    after = x.end(producer).producer
    waiter = x.add(after, B)
    x.wait(WAIT_MS)
    assert isinstance(x.answers.pop(waiter).error, ConcurrentTransactions)
    x.mark()
    assert x.status == "CompleteCommit"


def test_a_client_that_keeps_asking_waits_with_a_bounded_number() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    after = x.end(producer).producer
    answers = [x.add(after, B) for _ in range(20)]
    assert sum(1 for each in answers if hasattr(each, "error")) == 12


# --- fencing ----------------------------------------------------------------------------------------------------------
def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction() -> None:
    x = Coordinator()
    old = x.producer()
    x.add(old, A)
    waiter = x.init()
    assert x.mark() == [Markers("x", ProducerIdAndEpoch(101, 1), False, [A], 2)]
    assert x.answers.pop(waiter).producer == (101, 2)
    assert "transaction.fenced" in x.notes
    for refused in (x.add(old, A), x.end(old), x.end(old, version=1)):
        assert isinstance(refused.error, ProducerFenced)


def test_producers_of_other_ids_or_names_are_refused() -> None:
    x = Coordinator()
    producer = x.producer()
    for refused in (
        x.add(ProducerIdAndEpoch(7, 0), A),
        x.end(ProducerIdAndEpoch(7, 0)),
        x.add(producer, A, name="y"),
        x.end(producer, name="y"),
    ):
        assert isinstance(refused.error, InvalidProducerIdMapping)
    assert isinstance(x.init(expected=ProducerIdAndEpoch(7, 0)).error, ProducerFenced)
    for empty in (x.init(""), x.add(producer, A, name=""), x.end(producer, name="")):
        assert isinstance(empty.error, InvalidRequest)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    x = Coordinator()
    assert isinstance(x.init(timeout_ms=timeout_ms).error, InvalidTransactionTimeout)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)


def test_a_continuing_producer_gets_the_next_epoch_and_the_same_one_on_a_retry() -> None:
    x = Coordinator()
    first = x.producer()
    second = x.producer(expected=first)
    assert second == (101, 1)
    assert x.producer(expected=first) == second
    third = x.producer(expected=second)
    assert third == (101, 2)
    assert isinstance(x.init(expected=first).error, ProducerFenced)


def test_a_producer_that_begins_again_with_its_own_epoch_ends_its_open_transaction_and_continues() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    waiter = x.init(expected=producer)
    assert [markers.version for markers in x.mark()] == [2]
    assert x.answers.pop(waiter).producer == (101, 1)


def test_a_late_continuing_producer_does_not_abort_the_transaction_of_a_newer_one() -> None:
    x = Coordinator()
    old = x.producer()
    new = x.producer()
    x.add(new, A)
    assert isinstance(x.init(expected=old).error, ProducerFenced)
    assert x.status == "Ongoing"


# --- ending -----------------------------------------------------------------------------------------------------------
def test_a_repeated_end_gets_the_same_answer() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.end(producer)
    assert isinstance(x.end(producer).error, ConcurrentTransactions)
    assert isinstance(x.end(producer, commit=False).error, InvalidTransactionState)
    x.mark()
    again = x.end(producer)
    assert (again.error, again.producer) == (None, (101, 1))
    assert isinstance(x.end(producer, commit=False).error, InvalidTransactionState)


def test_a_producer_of_two_transactions_ago_is_fenced() -> None:
    x = Coordinator()
    first = x.producer()
    x.committed(x.committed(first, A), B)
    for commit in (True, False):
        assert isinstance(x.end(first, commit=commit).error, ProducerFenced)


def test_a_producer_that_lost_the_answer_to_its_end_may_begin_with_the_epoch_it_knows() -> None:
    x = Coordinator()
    first = x.producer()
    second = x.committed(first, A)
    assert x.producer(expected=first) == second


def test_an_abort_without_partitions_is_a_transaction_of_version_2_and_a_commit_is_none() -> None:
    x = Coordinator()
    producer = x.producer()
    assert isinstance(x.end(producer).error, InvalidTransactionState)
    assert isinstance(x.end(producer, commit=False, version=1).error, InvalidTransactionState)
    ended = x.end(producer, commit=False)
    assert (ended.error, ended.producer) == (None, (101, 1))
    assert x.mark() == [Markers("x", ProducerIdAndEpoch(101, 1), False, [], 2)]
    ended = x.end(ended.producer, commit=False)
    assert ended.producer == (101, 2)
    x.mark()
    x.wait(EARLY_END_MS)
    assert isinstance(x.end(ended.producer).error, InvalidTransactionState)


# --- the last epoch ---------------------------------------------------------------------------------------------------
def at_epoch(x: Coordinator, epoch: int) -> ProducerIdAndEpoch:
    x.producer()
    x.shard._transactions["x"].producer = ProducerIdAndEpoch(101, epoch)
    return ProducerIdAndEpoch(101, epoch)


def test_with_version_2_the_next_producer_id_begins_with_the_transaction_that_uses_up_the_epochs() -> None:
    x = Coordinator()
    producer = at_epoch(x, LAST_EPOCH)
    x.add(producer, A)
    ended = x.end(producer)
    new = ended.producer
    assert (new, ended.error) == ((102, 0), None)
    assert x.shard.prepared()[0].producer == (101, LAST_EPOCH + 1)
    x.restart()
    assert [markers.version for markers in x.mark()] == [2]
    assert x.shard.describe("x").producer == new
    again = x.end(producer)
    assert (again.error, again.producer) == (None, new)
    assert x.add(new, B).error is None
    assert isinstance(x.end(producer).error, InvalidProducerIdMapping)  # no client repeats it any longer


def test_only_the_last_epoch_of_the_previous_producer_id_may_repeat_its_end() -> None:
    x = Coordinator()
    producer = at_epoch(x, LAST_EPOCH)
    assert x.committed(producer, A) == (102, 0)
    early = ProducerIdAndEpoch(producer.id, LAST_EPOCH - 1)
    assert isinstance(x.end(early).error, InvalidProducerIdMapping)
    assert x.end(producer).error is None


def test_a_producer_that_begins_after_the_last_epoch_gets_another_id() -> None:
    x = Coordinator()
    at_epoch(x, LAST_EPOCH)
    assert x.producer() == (102, 0)
    x = Coordinator()
    last = at_epoch(x, LAST_EPOCH)
    new = x.producer(expected=last)
    assert new == (102, 0)
    assert x.producer(expected=last) == new  # the client repeats it, because the answer was lost


def test_the_epoch_for_fencing_begins_and_ends_no_transaction() -> None:
    x = Coordinator()
    fencing = at_epoch(x, LAST_EPOCH + 1)
    for version in (1, 2):
        assert isinstance(x.add(fencing, A, version=version).error, ProducerFenced)
        assert isinstance(x.end(fencing, commit=False, version=version).error, ProducerFenced)
    after = x.producer()
    assert (after.id == fencing.id, after.epoch) == (False, 0)


def test_fencing_uses_the_epoch_that_no_client_is_given() -> None:
    x = Coordinator()
    last = at_epoch(x, LAST_EPOCH)
    x.add(last, A)
    waiter = x.init()
    assert x.mark()[0].producer == (101, LAST_EPOCH + 1)
    assert x.answers.pop(waiter).producer == (102, 0)


# --- time -------------------------------------------------------------------------------------------------------------
def test_a_transaction_that_is_open_too_long_is_aborted_and_its_producer_cannot_commit_it() -> None:
    x = Coordinator()
    producer = x.producer(timeout_ms=10_000)
    x.add(producer, A)
    x.wait(9_999)
    assert x.status == "Ongoing"
    x.add(producer, B)  # does not extend the timeout
    x.wait(1)
    assert (x.status, x.notes) == ("PrepareAbort", ["transaction.timed_out"])
    assert x.mark() == [Markers("x", ProducerIdAndEpoch(101, 1), False, [A, B], 2)]
    assert isinstance(x.end(producer).error, InvalidTransactionState)
    assert isinstance(x.add(producer, C).error, ProducerFenced)
    assert x.end(producer, commit=False).producer == (101, 1)  # the client learns of the abort, and continues
    assert x.producer() == (101, 2)


def test_with_version_2_a_producer_continues_after_its_transaction_timed_out() -> None:
    x = Coordinator()
    producer = x.producer(timeout_ms=10_000)
    x.add(producer, A)
    x.wait(10_000)
    x.mark()
    after = x.producer(expected=producer)
    assert after == (101, 1)
    assert x.add(after, B).error is None
    x.version = 1
    x.wait(60_000)
    x.mark()
    assert isinstance(x.init(expected=after).error, ProducerFenced)


def test_the_timeout_continues_after_a_restart() -> None:
    x = Coordinator()
    producer = x.producer(timeout_ms=10_000)
    x.add(producer, A)
    x.now += 8_000
    x.restart()
    x.wait(1_999)
    assert x.status == "Ongoing"
    x.wait(1)
    assert x.status == "PrepareAbort"


def test_an_idle_id_expires_and_an_open_one_does_not() -> None:
    x = Coordinator()
    idle, busy = x.producer(), x.producer("y", timeout_ms=900_000)
    x.committed(idle, A)
    x.wait(7 * DAY - 1)
    x.add(busy, A, name="y")
    x.wait(1)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)
    assert x.shard.describe("y").error is None
    x.restart()
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)
    assert isinstance(x.add(idle, A).error, InvalidProducerIdMapping)


def test_an_id_is_idle_since_its_last_transaction() -> None:
    x = Coordinator()
    producer = x.producer()
    x.wait(5 * DAY)
    x.committed(producer, A)
    x.wait(7 * DAY - 1)
    assert x.shard.describe("x").error is None
    x.wait(1)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)


def test_a_load_gives_an_idle_id_no_new_time() -> None:
    x = Coordinator()
    x.committed(x.producer(), A)
    x.wait(7 * DAY - 1)
    x.restart()
    assert x.status == "CompleteCommit"
    x.wait(1)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)


def test_records_of_another_type_are_passed_over() -> None:
    x = Coordinator()
    x.producer()
    x.log.insert(0, CoordinatorRecord(bytes.fromhex("0001 0001 78"), b"left by a newer release"))
    x.restart()
    assert x.status == "Empty"


def test_an_id_of_a_process_whose_clock_was_behind_is_idle_since_its_record() -> None:
    x = Coordinator()
    x.producer()
    x.now += 30 * DAY
    x.shard = TransactionShard(TransactionSettings())
    for record in x.log:
        x.shard.load(record.key, record.value, x.now, written_ms=x.now)
    x.keep(finish(x.shard.loaded(x.now)))
    x.wait(7 * DAY - 1)
    assert x.shard.describe("x").error is None
    x.wait(1)
    assert isinstance(x.shard.describe("x").error, TransactionalIdNotFound)


# --- crashes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crashes", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)])
def test_a_crash_between_any_two_steps_ends_as_answered_to_the_client(commit: bool, crashes: Sequence[int]) -> None:
    x = Coordinator()
    producer = x.producer()
    for step in range(4):
        if step == 0:
            assert x.add(producer, A).error is None
        elif step == 1:
            assert x.end(producer, commit=commit).error is None
        elif step == 2:
            assert [markers.commit for markers in x.mark()] == [commit]
        if step in crashes:
            x.restart()
    x.mark()
    assert x.status == ("CompleteCommit" if commit else "CompleteAbort")
    assert x.add(ProducerIdAndEpoch(101, 1), B).error is None


def test_markers_reported_twice_or_for_another_transaction_change_nothing() -> None:
    x = Coordinator()
    producer = x.producer()
    x.add(producer, A)
    x.end(producer)
    (markers,) = x.mark()
    records = len(x.log)
    x.keep(x.shard.completed(markers, x.now))
    assert len(x.log) == records
    x.add(ProducerIdAndEpoch(101, 1), B)
    x.end(ProducerIdAndEpoch(101, 1))
    x.keep(x.shard.completed(markers, x.now))
    assert x.status == "PrepareCommit"


# --- readers ----------------------------------------------------------------------------------------------------------
def test_transactions_are_listed_by_state_producer_age_and_name() -> None:
    x = Coordinator()
    x.add(x.producer("pay-1"), A, name="pay-1")
    x.now += 5_000
    x.add(x.producer("pay-2"), A, name="pay-2")
    x.producer("idle")

    def names(**filters: Any) -> list[str]:
        return [each.transactional_id for share in x.shard.list(ListTransactions(**filters), x.now) for each in share]

    assert names() == ["pay-1", "pay-2", "idle"]
    assert names(states=frozenset({"Ongoing"})) == ["pay-1", "pay-2"]
    assert names(producer_ids=frozenset({102})) == ["pay-2"]
    assert names(duration_ms=1_000) == ["pay-1", "idle"]  # as in Kafka: "idle" began at -1
    assert names(duration_ms=4_999) == ["pay-1", "idle"]
    assert names(duration_ms=5_000) == ["idle"]  # an age equal to the filter does not match
    assert names(pattern="pay-.*") == ["pay-1", "pay-2"]
    with pytest.raises(InvalidRegularExpression, match="cannot be read"):
        names(pattern="(")


def test_a_list_by_pattern_lets_others_work_after_each_match() -> None:
    x = Coordinator()
    for number in range(3):
        x.producer(f"id-{number}")
    assert [len(share) for share in x.shard.list(ListTransactions(pattern="id-.*"), x.now)] == [1, 1, 1]


@pytest.mark.parametrize(("version", "of_markers"), [(1, 0), (2, 2)])
def test_a_producer_that_begins_fences_with_markers_of_the_clusters_version(version: int, of_markers: int) -> None:
    x = Coordinator()
    x.version = version
    x.add(x.producer(), A, version=0)
    x.init()
    assert [each.version for each in x.mark()] == [of_markers]
