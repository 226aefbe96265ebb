"""One transactional id: the producers that may continue, those that are fenced, and the parts of a transaction that are
recorded.
"""

from __future__ import annotations

import pytest

from grpc_api.contract.transactions import NO_PRODUCER, ProducerIdAndEpoch
from service.coordination.transaction_records import TransactionStatus
from service.coordination.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    TRANSITIONS,
    Transaction,
    UnexpectedStatus,
)
from storage_tiers.types import FENCING_EPOCH, TopicPartition

OLD, NEW = 1, 99
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def begun(epoch: int = 0) -> Transaction:
    """An id whose producer has this epoch."""
    known = Transaction("copier", OLD, 60_000, 1_000)
    assert known.begin_producer(NO_PRODUCER, NEW, 60_000, 1_000)
    known.producer = ProducerIdAndEpoch(OLD, epoch)
    return known


def goes_on(known: Transaction, epoch: int) -> bool:
    return known.begin_producer(ProducerIdAndEpoch(OLD, epoch), NEW, 60_000, 2_000)


def test_a_continuing_producer_gets_the_next_epoch_and_gets_it_again() -> None:
    known = begun()
    assert goes_on(known, 0)
    assert goes_on(known, 0)
    assert known.producer == ProducerIdAndEpoch(OLD, 1)


def test_a_producer_older_than_the_newest_is_fenced() -> None:
    known = begun()
    assert goes_on(known, 0)
    assert known.begin_producer(NO_PRODUCER, NEW, 60_000, 2_000)
    assert not goes_on(known, 0)
    assert known.producer == ProducerIdAndEpoch(OLD, 2)


def fenced(version: int, epoch: int = 1) -> Transaction:
    known = begun(epoch)
    known.add([T0], 2, 2_000)
    known.fence(version, 3_000)
    known.complete(4_000)
    return known


@pytest.mark.parametrize("version", [0, 1])
def test_below_version_2_a_producer_whose_transaction_was_ended_by_fencing_is_fenced(version: int) -> None:
    known = fenced(version)
    assert (goes_on(known, 0), goes_on(known, 1)) == (False, False)
    assert (known.producer, known.value.client_version) == (ProducerIdAndEpoch(OLD, 2), 0)


def test_with_version_2_a_producer_whose_transaction_timed_out_keeps_its_epoch() -> None:
    known = fenced(2)
    assert (goes_on(known, 0), goes_on(known, 1)) == (False, True)
    assert (known.producer, known.value.client_version) == (ProducerIdAndEpoch(OLD, 2), 2)


def test_with_version_2_a_producer_that_began_fences_it_too() -> None:
    known = fenced(2)
    assert known.begin_producer(NO_PRODUCER, NEW, 60_000, 5_000)
    assert not goes_on(known, 1)


def test_a_producer_fenced_with_the_last_epoch_gets_a_new_id_and_the_same_one_on_a_retry() -> None:
    known = fenced(2, LAST_EPOCH)
    assert known.producer.epoch == FENCING_EPOCH
    assert goes_on(known, LAST_EPOCH)
    assert goes_on(known, LAST_EPOCH)
    assert known.producer == ProducerIdAndEpoch(NEW, 0)


def test_no_epoch_follows_the_one_for_fencing() -> None:
    known = fenced(2, FENCING_EPOCH)
    assert known.value.producer_epoch == FENCING_EPOCH
    assert not goes_on(known, LAST_EPOCH)


def test_the_last_epoch_of_an_id_is_followed_by_a_new_id_which_is_given_again() -> None:
    known = begun(LAST_EPOCH)
    assert goes_on(known, LAST_EPOCH)
    assert (known.producer, known.previous_id) == (ProducerIdAndEpoch(NEW, 0), OLD)
    assert goes_on(known, LAST_EPOCH)
    assert known.producer == ProducerIdAndEpoch(NEW, 0)


def test_an_older_producer_does_not_take_the_new_id() -> None:
    known = begun(LAST_EPOCH)
    assert not goes_on(known, LAST_EPOCH - 1)
    assert known.producer == ProducerIdAndEpoch(OLD, LAST_EPOCH)


def test_the_producer_that_another_one_replaced_does_not_take_its_new_id() -> None:
    known = begun(LAST_EPOCH)
    assert known.begin_producer(NO_PRODUCER, NEW, 60_000, 2_000)
    assert known.producer == ProducerIdAndEpoch(NEW, 0)
    assert not goes_on(known, LAST_EPOCH)


def test_only_the_last_epoch_of_the_previous_producer_id_is_known() -> None:
    known = begun(LAST_EPOCH)
    assert goes_on(known, LAST_EPOCH)
    assert [known.is_known(ProducerIdAndEpoch(OLD, epoch)) for epoch in (0, LAST_EPOCH - 1, LAST_EPOCH)] == [
        False,
        False,
        True,
    ]
    assert not known.is_known(ProducerIdAndEpoch(50, LAST_EPOCH))


def test_a_producer_brings_its_own_timeout() -> None:
    known = begun()
    assert known.begin_producer(NO_PRODUCER, NEW, 7_000, 2_000)
    assert (known.timeout_ms, known.value.timeout_ms) == (7_000, 7_000)


def test_a_transaction_is_as_old_as_its_first_partition() -> None:
    known = begun()
    known.add([T0], 2, 2_000)
    known.add([T1], 2, 5_000)
    assert (known.start_ms, known.value.start_timestamp, known.update_ms) == (2_000, 2_000, 5_000)
    known.prepare(commit=True, client_version=2, spare_id=NEW, now_ms=6_000)
    assert (known.start_ms, known.markers.partitions) == (2_000, [T0, T1])


def test_the_record_names_the_next_producer_from_the_decision_until_the_end() -> None:
    known = begun(LAST_EPOCH)
    known.add([T0], 2, 2_000)
    assert (known.value.next_producer_id, known.value.next_producer_epoch) == (-1, NO_EPOCH)
    known.prepare(commit=False, client_version=2, spare_id=NEW, now_ms=3_000)
    assert (known.value.next_producer_id, known.value.next_producer_epoch) == (NEW, 0)
    known.complete(4_000)
    assert known.status is TransactionStatus.COMPLETE_ABORT
    assert (known.value.next_producer_id, known.value.next_producer_epoch) == (-1, NO_EPOCH)
    assert known.producer == ProducerIdAndEpoch(NEW, 0)


# --- the table --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", TransactionStatus)
@pytest.mark.parametrize("after", TransactionStatus)
def test_every_change_of_state_is_in_the_table_or_refused(status: TransactionStatus, after: TransactionStatus) -> None:
    transaction = Transaction("x", 1, 1, 0)
    transaction.status = status
    if after in TRANSITIONS[status]:
        transaction.enter(after, 7)
        assert (transaction.status, transaction.update_ms) == (after, 7)
    else:
        with pytest.raises(UnexpectedStatus):
            transaction.enter(after, 7)


def test_the_table_has_every_state() -> None:
    assert set(TRANSITIONS) == set(TransactionStatus)
