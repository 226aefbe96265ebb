"""Idempotence and transactions of one partition, case by case as Kafka 4.2 decides them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from storage_tiers.hot.earlier_batches import Earlier, encode
from storage_tiers.hot.producer_snapshot import end_transactions, snapshot_crc
from storage_tiers.hot.producer_state import CompletedTransaction, Duplicate, ProducerStateManager
from storage_tiers.records.batch import BatchHeader, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import FENCING_EPOCH
from tests.storage_tiers.hot.support import batch_of, marker

MAX_SEQUENCE = (1 << 31) - 1
NOW = 1_000


def header(count: int, sequence: int, *, epoch: int = 0, producer: int = 9, transactional: bool = False) -> BatchHeader:
    return read_header(batch_of(count, producer=(producer, epoch, sequence), transactional=transactional))


def written(state: ProducerStateManager, batch: BatchHeader, offset: int) -> None:
    assert state.check(batch, now_ms=NOW) is None
    state.update(batch, offset, now_ms=NOW)


def end(state: ProducerStateManager, offset: int, kind: ControlKind, *, producer: int = 9, epoch: int = 0) -> object:
    return state.update_marker(
        read_header(marker(kind, producer, epoch)),
        offset,
        coordinator_epoch=7,
        aborted=kind is ControlKind.ABORT,
        now_ms=NOW,
    )


def test_sequences_must_follow_one_another() -> None:
    state = ProducerStateManager()
    written(state, header(3, 0), 100)
    written(state, header(2, 3), 103)
    for sequence in (4, 6, MAX_SEQUENCE):
        with pytest.raises(OutOfOrderSequence, match="where 5 is expected"):
            state.check(header(1, sequence), now_ms=NOW)
    written(state, header(1, 5), 105)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    state = ProducerStateManager()
    written(state, header(1, 4711), 0)
    written(state, header(1, 4712), 1)


def test_sequences_wrap() -> None:
    state = ProducerStateManager()
    written(state, header(3, MAX_SEQUENCE - 1), 0)  # sequences MAX-1, MAX, 0
    repeated = state.check(header(3, MAX_SEQUENCE - 1), now_ms=NOW)
    assert repeated is not None and (repeated.base_offset, repeated.last_offset) == (0, 2)
    written(state, header(1, 1), 3)
    fresh = ProducerStateManager()
    written(fresh, header(1, MAX_SEQUENCE), 0)
    written(fresh, header(1, 0), 1)


def test_the_last_five_batches_are_remembered() -> None:
    state = ProducerStateManager()
    batches = [header(2, 2 * index) for index in range(6)]
    for index, batch in enumerate(batches):
        written(state, batch, 50 + 2 * index)
    for index, batch in enumerate(batches[1:], 1):
        offset = 50 + 2 * index
        assert state.check(batch, now_ms=NOW) == Duplicate(offset, offset + 1, batch.max_timestamp)
    with pytest.raises(OutOfOrderSequence):
        state.check(batches[0], now_ms=NOW)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(1, 10), now_ms=NOW)  # the first half of a remembered batch is not a duplicate of it


def test_a_new_epoch_begins_at_zero_and_fences_the_old() -> None:
    state = ProducerStateManager()
    written(state, header(1, 0, epoch=3), 0)
    with pytest.raises(OutOfOrderSequence, match="epoch 4"):
        state.check(header(1, 1, epoch=4), now_ms=NOW)
    written(state, header(1, 0, epoch=4), 1)
    with pytest.raises(InvalidProducerEpoch, match="epoch 3"):
        state.check(header(1, 1, epoch=3), now_ms=NOW)
    with pytest.raises(InvalidProducerEpoch):
        state.check(header(1, 0, epoch=3), now_ms=NOW)  # even a duplicate of an earlier batch is refused


def test_a_producer_known_by_a_marker_only_begins_at_zero() -> None:
    state = ProducerStateManager()
    assert end(state, 10, ControlKind.ABORT) is None
    with pytest.raises(OutOfOrderSequence):
        state.check(header(1, 1), now_ms=NOW)
    written(state, header(1, 0), 11)


def test_a_transaction_holds_the_stable_offset_until_its_marker_is_replicated() -> None:
    state = ProducerStateManager()
    written(state, header(1, 0, transactional=True), 100)
    written(state, header(1, 0, producer=8, transactional=True), 101)
    written(state, header(1, 1, transactional=True), 102)
    assert state.first_unstable_offset == 100
    assert end(state, 103, ControlKind.ABORT) == CompletedTransaction(9, 100, 103, 101, True)
    assert state.first_undecided_offset == 101
    assert state.first_undecided_producer == 8
    assert state.first_unstable_offset == 100
    state.on_high_watermark(103)
    assert state.first_unstable_offset == 100
    state.on_high_watermark(104)
    assert state.first_unstable_offset == 101
    assert end(state, 105, ControlKind.COMMIT, producer=8) == CompletedTransaction(8, 101, 105, 106, False)
    state.on_high_watermark(106)
    assert state.first_unstable_offset is None


def test_an_open_transaction_refuses_other_writes() -> None:
    state = ProducerStateManager()
    written(state, header(1, 0, transactional=True), 0)
    with pytest.raises(InvalidTransactionState, match="open transaction"):
        state.check(header(1, 1), now_ms=NOW)


def test_markers_are_checked() -> None:
    state = ProducerStateManager()
    state.check_marker(9, 0, 1)
    written(state, header(1, 0, epoch=2, transactional=True), 0)
    with pytest.raises(InvalidProducerEpoch):
        state.check_marker(9, 1, 7)
    with pytest.raises(InvalidProducerEpoch, match="too late"):
        state.check_marker(9, 2, 7, transaction_version=2)
    state.check_marker(9, 2, 7)
    state.check_marker(9, 3, 7, transaction_version=2)
    end(state, 1, ControlKind.COMMIT, epoch=3)
    state.check_marker(9, 3, 7, transaction_version=2)  # the same marker again, after its response was lost
    with pytest.raises(TransactionCoordinatorFenced, match="coordinator epoch 6"):
        state.check_marker(9, 3, 6)


def test_producers_expire_by_when_they_wrote_unless_a_transaction_is_open() -> None:
    state = ProducerStateManager()
    state.update(header(1, 0), 0, now_ms=1_000)
    state.update(header(1, 0, producer=8, transactional=True), 1, now_ms=1_000)
    state.update(header(1, 0, producer=7), 2, now_ms=5_000)
    assert state.expire(6_000, 5_000) == 1
    assert sorted(state.producers) == [7, 8]


def test_the_longest_idle_of_too_many_producers_is_forgotten() -> None:
    state = ProducerStateManager(3)
    for offset, producer in enumerate((1, 2, 3)):
        written(state, header(1, 0, producer=producer), offset)
    written(state, header(1, 1, producer=1), 3)
    written(state, header(1, 0, producer=4), 4)
    assert list(state.producers) == [3, 1, 4]
    assert state.check(header(1, 1, producer=1), now_ms=NOW) == Duplicate(3, 3, read_header(batch_of(1)).max_timestamp)
    assert state.check(header(1, 0, producer=2), now_ms=NOW) is None, "a batch of a dropped producer counts as new"
    assert (state.take_forgotten(), state.take_forgotten()) == (1, 0)
    again = ProducerStateManager.restore(state.snapshot(), now_ms=NOW, max_producers=3)
    for known in (state, again):
        written(known, header(1, 0, producer=5), 5)
        assert list(known.producers) == [1, 4, 5]


def test_a_producer_with_an_open_transaction_is_not_forgotten() -> None:
    state = ProducerStateManager(2)
    written(state, header(1, 0, producer=1, transactional=True), 0)
    for producer in range(2, 6):
        written(state, header(1, 0, producer=producer), producer)
    assert set(state.producers) == {1, 5}
    for producer in (6, 7):
        written(state, header(1, 0, producer=producer, transactional=True), producer)
    assert set(state.producers) == {1, 6, 7}


def test_a_smaller_bound_holds_from_the_next_producer_on() -> None:
    state = ProducerStateManager()
    for producer in range(10):
        written(state, header(1, 0, producer=producer), producer)
    state.max_producers = 3
    written(state, header(1, 0, producer=10), 10)
    assert list(state.producers) == [8, 9, 10]


def test_a_snapshot_restores_the_state_for_validation() -> None:
    state = ProducerStateManager()
    written(state, header(3, 0), 0)
    written(state, header(2, 3), 3)
    written(state, header(1, 0, producer=8, epoch=1, transactional=True), 5)
    end(state, 6, ControlKind.ABORT, producer=6)
    again = ProducerStateManager.restore(state.snapshot(), now_ms=77)
    assert again.snapshot() == state.snapshot()
    assert again.first_unstable_offset == 5
    assert again.producers[9].seen_ms == 77
    assert again.check(header(2, 3), now_ms=NOW) == Duplicate(3, 4, header(2, 3).max_timestamp)
    with pytest.raises(OutOfOrderSequence):
        again.check(header(3, 0), now_ms=NOW)  # a snapshot keeps only each producer's newest batch
    assert again.producers[6].coordinator_epoch == 7


def test_the_snapshot_is_kafkas_version_1() -> None:
    state = ProducerStateManager()
    written(state, header(3, 5, epoch=2), 40)
    content = state.snapshot()
    version, crc, count = struct.unpack_from(">hIi", content)
    assert (version, count) == (1, 1)
    assert crc == crc32c(content[6:])
    assert struct.unpack_from(">qhiqiqiq", content, 10) == (9, 2, 7, 42, 2, header(3, 5).max_timestamp, -1, -1)


def five_batches() -> ProducerStateManager:
    """Seven batches of producer 9, of which the last five are known, two of producer 8, and one of producer 7."""
    state = ProducerStateManager()
    for number in range(7):
        written(state, header(2, 2 * number), 10 * number)
    for number in range(2):
        written(state, header(1, number, producer=8, transactional=True), 70 + number)
    written(state, header(1, 0, producer=7), 80)
    return state


@pytest.mark.parametrize("change", [lambda content: content, end_transactions])
def test_a_state_has_every_batch_that_a_producer_may_repeat(change: Callable[[bytes], bytes]) -> None:
    state = five_batches()
    content = change(state.state())
    assert content.startswith(change(state.snapshot())), "Kafka's snapshot comes first"
    again = ProducerStateManager.restore(content, now_ms=NOW)
    assert again.state() == content
    assert {key: each.batches for key, each in again.producers.items()} == {
        key: each.batches for key, each in state.producers.items()
    }
    for number in range(2, 7):
        known = again.check(header(2, 2 * number), now_ms=NOW)
        assert known == Duplicate(10 * number, 10 * number + 1, header(2, 2 * number).max_timestamp)
    with pytest.raises(OutOfOrderSequence):
        again.check(header(2, 2), now_ms=NOW)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state, size: state[:-1],
        lambda state, size: state + b"x",
        lambda state, size: state[: size + 3],
        lambda state, size: state[: size + 9] + b"x" + state[size + 10 :],
        lambda state, size: five_batches().snapshot()[:-46] + state[size:],
        lambda state, size: ProducerStateManager().snapshot() + state[size:],
    ],
)
def test_damaged_earlier_batches_are_refused(damage: Callable[[bytes, int], bytes]) -> None:
    state, size = five_batches().state(), len(five_batches().snapshot())
    for read in (lambda content: ProducerStateManager.restore(content, now_ms=0), end_transactions):
        with pytest.raises(CorruptRecord):
            read(damage(state, size))


@pytest.mark.parametrize(
    "rows",
    [
        [(5, [(0, 1, 0, 0)])],
        [(7, [(0, 80, 0, 0)])],
        [(9, [(0, 30, 0, 0), (1, 20, 0, 0)])],
        [(9, [(each, each, 0, 0) for each in range(5)])],
        [(9, [(0, 20, -1, 0)])],
        [(9, [(0, 20, 21, 0)])],
        [(9, [(0, 20, 0, 0), (1, 22, 2, 0)])],
        [(9, [(0, 60, 0, 0)])],
    ],
)
def test_earlier_batches_that_contradict_the_snapshot_are_refused(rows: Earlier) -> None:
    snapshot = five_batches().snapshot()
    earlier = encode([(8, [(0, 1, 0, 0)]), *rows], snapshot_crc(snapshot))
    with pytest.raises(CorruptRecord, match="contradict the snapshot"):
        ProducerStateManager.restore(snapshot + earlier, now_ms=0)
    state = ProducerStateManager.restore(snapshot, now_ms=0)
    with pytest.raises(CorruptRecord):
        state.add_earlier(earlier, snapshot_crc(snapshot))
    assert state.snapshot() == state.state(), "none of them is used"


def test_the_state_of_a_later_offset_is_recognised() -> None:
    state = five_batches()
    state.check_below(81)
    with pytest.raises(CorruptRecord, match="later offset than 80"):
        state.check_below(80)
    next(iter(state.producers.values())).transaction_start = 90
    with pytest.raises(CorruptRecord, match="later offset than 90"):
        state.check_below(90)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:5], lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:20] + b"\xff" + b[21:]]
)
def test_a_damaged_snapshot_is_refused(damage: object) -> None:
    state = ProducerStateManager()
    written(state, header(3, 0), 0)
    with pytest.raises(CorruptRecord):
        ProducerStateManager.restore(damage(state.snapshot()), now_ms=0)  # type: ignore[operator]


def test_a_later_epoch_does_not_join_a_transaction_whose_marker_is_lost() -> None:
    state = ProducerStateManager()
    written(state, header(1, 0, epoch=3, transactional=True), 0)
    for transactional in (True, False):
        with pytest.raises(NotEnoughReplicas, match="epoch 3 at offset 0 has lost its marker"):
            state.check(header(1, 0, epoch=4, transactional=transactional), now_ms=NOW)
    state.check_marker(9, 4, 7, transaction_version=2)
    end(state, 1, ControlKind.COMMIT, epoch=4)
    written(state, header(1, 0, epoch=4, transactional=True), 2)


def test_a_marker_of_a_later_transaction_does_not_decide_one_whose_marker_is_lost() -> None:
    state = ProducerStateManager()
    written(state, header(1, 0, epoch=3, transactional=True), 0)
    with pytest.raises(InvalidProducerEpoch, match="belongs to a later transaction"):
        state.check_marker(9, 5, 7, transaction_version=2)
    state.check_marker(9, FENCING_EPOCH, 7, transaction_version=2)  # ends any open transaction
    state.check_marker(9, 5, 7)  # an operator's marker, or a fenced producer's before version 2
    end(state, 1, ControlKind.ABORT, epoch=4)
    state.check_marker(9, 6, 7, transaction_version=2)  # no transaction is open


# --- the common case, which skips most checks -------------------------------------------------------------------------
def slowly_checked(state: ProducerStateManager, batch: BatchHeader) -> Duplicate | type[LogError] | None:
    """What the rules say about a batch, without the common case."""
    entry = state.producers.get(batch.producer_id)
    if entry is None:
        return None
    if batch.producer_epoch == entry.epoch:
        for known in entry.batches:
            if (known.first_sequence, known.last_sequence) == (batch.base_sequence, batch.last_sequence):
                return Duplicate(known.last_offset - known.offset_delta, known.last_offset, known.timestamp)
    if batch.producer_epoch < entry.epoch:
        return InvalidProducerEpoch
    is_open = entry.transaction_start >= 0
    if is_open and batch.producer_epoch > entry.epoch:
        return NotEnoughReplicas
    follows = (entry.last_sequence + 1) & MAX_SEQUENCE if batch.producer_epoch == entry.epoch else 0
    if batch.base_sequence != follows:
        return OutOfOrderSequence
    return InvalidTransactionState if is_open and not batch.transactional else None


#: Producer, epoch, first sequence (None for the next one), number of records, whether it is transactional.
sent = st.tuples(
    st.sampled_from((8, 9)),
    st.integers(0, 2),
    st.none() | st.integers(0, 4) | st.just(MAX_SEQUENCE),
    st.integers(1, 3),
    st.booleans(),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(sent | st.tuples(st.sampled_from((8, 9)), st.integers(0, 3)), max_size=14))
def test_the_common_case_is_answered_by_the_same_rules(steps: list[tuple[Any, ...]]) -> None:
    state, offset = ProducerStateManager(), 0
    for producer, epoch, *rest in steps:
        if rest:
            sequence, count, transactional = rest
            entry = state.producers.get(producer)
            if sequence is None:
                sequence = 0 if entry is None else (entry.last_sequence + 1) & MAX_SEQUENCE
            batch = header(count, sequence, epoch=epoch, producer=producer, transactional=transactional)
            expected = slowly_checked(state, batch)
            try:
                found = state.check(batch, now_ms=NOW)
            except LogError as error:
                assert type(error) is expected
                continue
            assert found == expected
            if found is not None:
                continue
            state.update(batch, offset, now_ms=NOW)
            offset += count
        else:
            end(state, offset, ControlKind.COMMIT, producer=producer, epoch=epoch)
            offset += 1


def test_a_coordinators_batch_has_no_sequence_to_continue() -> None:
    state = ProducerStateManager()
    state.update(header(3, -1, transactional=True), 4, now_ms=NOW)
    assert (state.producers[9].last_sequence, state.producers[9].last_offset) == (-1, 6)
    written(state, header(1, 0, transactional=True), 7)
