"""Records before a gap that compaction left prove nothing about a sidecar; records after the gap do."""

from __future__ import annotations

import struct
from typing import NamedTuple, cast

import pytest

from service.fsck.history import History
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import CONTROL_MASK, LAST_OFFSET_DELTA, PRODUCER_ID, assign, read_header, set_crc
from storage_tiers.records.builder import ControlKind, build_empty_batch
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicId
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker

PRODUCER = 7


class Segment(NamedTuple):
    base: int
    end: int
    sidecar_key: str = "a sidecar"
    records: int = 1
    key: str = ""


def data(base: int, epoch: int = 0, sequence: int = 0) -> bytearray:
    made = bytearray(batch(("a", "1"), producer=(PRODUCER, epoch, sequence), transactional=True))
    assign(made, base_offset=base, leader_epoch=1)
    return made


def ended(base: int, kind: ControlKind, epoch: int = 0) -> bytearray:
    made = bytearray(marker(kind, PRODUCER, epoch))
    assign(made, base_offset=base, leader_epoch=1)
    return made


def state(*batches: bytearray) -> bytes:
    """The snapshot that a broker has after these batches."""
    known = ProducerStateManager(10)
    for each in batches:
        header = read_header(each)
        if header.control:
            known.update_marker(header, header.base_offset, coordinator_epoch=7, aborted=True, now_ms=0)
        else:
            known.update(header, header.base_offset, now_ms=0)
    return known.snapshot()


def faults(
    snapshot: bytes,
    aborted: tuple[AbortedTransaction, ...],
    *left: bytearray,
    base: int = 0,
    is_compacted: bool = False,
    offloaded_in: int = 1,
) -> list[str]:
    found: list[str] = []
    history = History(base, 0, lambda _, fault: found.append(fault), is_compacted=is_compacted)
    for each in left:
        history.add(read_header(each), memoryview(each))
    end = read_header(left[-1]).next_offset
    sidecar = Sidecar(base, end, 0, 0, aborted=aborted, epochs=(EpochEntry(1, 0),), producer_state=snapshot)
    key = keys.key(keys.SegmentKey("c", "t", TopicId(bytes(16)), 0, base, offloaded_in, "0" * 32))
    history.finish(cast(RemoteSegment, Segment(base, end, key=key)), sidecar)
    history.close()
    return found


WRITTEN = data(0), data(1, sequence=1), ended(2, ControlKind.ABORT)
ABORTED = AbortedTransaction(PRODUCER, 0, 2, 3)


def test_a_whole_history_proves_the_producer_state_and_the_aborted_transactions() -> None:
    assert faults(state(*WRITTEN), (ABORTED,), *WRITTEN) == []
    assert "not in it" in faults(state(*WRITTEN), (), *WRITTEN)[0]
    assert "last offset is 0" in faults(state(WRITTEN[0], WRITTEN[2]), (ABORTED,), *WRITTEN)[0]
    assert "in no batch" in faults(state(data(0)), (), _foreign())[0]


@pytest.mark.parametrize("known", [(WRITTEN[0], WRITTEN[2]), (WRITTEN[2],)])
def test_a_crash_may_leave_an_older_batch_of_a_producer_in_a_compacted_topic(known: tuple[bytearray, ...]) -> None:
    """The start has rebuilt the snapshot from local segments, which compaction reduced; the bucket's are whole."""
    assert faults(state(*known), (ABORTED,), *WRITTEN, is_compacted=True) == []
    assert "last offset is" in faults(state(*known), (ABORTED,), *WRITTEN)[0]
    newer = data(3, epoch=1)
    assert "last offset is 3" in faults(state(*WRITTEN, newer), (ABORTED,), *WRITTEN, is_compacted=True)[0]


def test_an_older_batch_in_a_compacted_topic_may_have_a_newer_timestamp() -> None:
    """The timestamp is the client's."""
    first, last = (bytearray(batch(("a", "1"), producer=(PRODUCER, 0, at), timestamps=[9 - at])) for at in (0, 1))
    for place, each in enumerate((first, last)):
        assign(each, base_offset=place, leader_epoch=1)
    assert faults(state(first), (), first, last, is_compacted=True) == []
    assert faults(state(first), (), first, last)


def test_a_crash_may_leave_a_producer_before_the_epoch_that_a_marker_gave_it() -> None:
    written = (*WRITTEN[:2], ended(2, ControlKind.ABORT, epoch=1))
    for known in ((data(1, sequence=1), ended(2, ControlKind.ABORT)), (ended(2, ControlKind.ABORT),)):
        assert faults(state(*known), (ABORTED,), *written, is_compacted=True) == []


def test_a_crash_may_leave_the_later_batches_of_an_open_transaction_in_a_compacted_topic() -> None:
    assert faults(state(WRITTEN[1]), (), *WRITTEN[:2], is_compacted=True) == []
    assert faults(state(WRITTEN[1]), (), *WRITTEN[:2])


@pytest.mark.parametrize("known", [WRITTEN[:1], WRITTEN[:2], WRITTEN[1:2]])
def test_a_transaction_that_ended_is_open_in_no_snapshot_of_a_compacted_topic(known: tuple[bytearray, ...]) -> None:
    """Committed reads of a log that is rebuilt from such a snapshot would stop at the transaction's start."""
    assert faults(state(*known), (ABORTED,), *WRITTEN, is_compacted=True)


def _foreign() -> bytearray:
    made = bytearray(batch(("a", "1")))
    assign(made, base_offset=0, leader_epoch=1)
    return made


@pytest.mark.parametrize("left", [WRITTEN[1:], WRITTEN[2:], (WRITTEN[0], WRITTEN[2])])
def test_records_removed_by_compaction_are_no_fault(left: tuple[bytearray, ...]) -> None:
    assert faults(state(*WRITTEN), (ABORTED,), *left) == []


def test_records_after_the_gap_are_compared() -> None:
    assert "last offset is 0" in faults(state(WRITTEN[0]), (), WRITTEN[1])[0]
    newer = data(3, epoch=1)
    assert "epoch is 2" in faults(state(*WRITTEN, data(3, epoch=2)), (), *WRITTEN[1:], newer)[0]
    assert faults(state(*WRITTEN, newer), (ABORTED,), *WRITTEN[1:], newer) == []
    late = AbortedTransaction(PRODUCER, 3, 4, 5)
    aborted = (*WRITTEN, newer, ended(4, ControlKind.ABORT, epoch=1))
    assert faults(state(*aborted), (late,), *aborted[2:]) == []
    assert "not in it" in faults(state(*aborted), (), *aborted[2:])[0]


def test_an_emptied_marker_tells_nothing() -> None:
    emptied = bytearray(build_empty_batch(2, 3, leader_epoch=1))
    emptied[22] |= CONTROL_MASK
    struct.pack_into(">q", emptied, PRODUCER_ID, PRODUCER)
    struct.pack_into(">h", emptied, PRODUCER_ID + 8, 0)
    set_crc(emptied)
    assert faults(state(*WRITTEN), (ABORTED,), *WRITTEN[:2], emptied) == []
    assert faults(state(*WRITTEN), (), *WRITTEN[:2], emptied) == []


def test_a_producer_that_is_gone_is_no_fault_where_batches_are_missing() -> None:
    other = _foreign()
    assign(other, base_offset=5, leader_epoch=1)
    assert faults(state(*WRITTEN), (), other) == []


def test_a_batch_that_lost_its_newest_record_has_an_older_timestamp_than_its_producer() -> None:
    whole = bytearray(batch(("a", "1"), ("b", "1"), producer=(PRODUCER, 0, 0)))
    left = bytearray(batch(("a", "1"), producer=(PRODUCER, 0, 0)))
    struct.pack_into(">i", left, LAST_OFFSET_DELTA, 1)
    for each in (whole, left):
        assign(each, base_offset=0, leader_epoch=1)
        set_crc(each)
    assert faults(state(whole), (), left) == []
    assert "its timestamp is" in faults(state(left), (), whole)[0]
    newer, following = (bytearray(batch(("a", "1"), producer=(PRODUCER, 0, 2), timestamps=[at])) for at in (9, 8))
    for each in (newer, following):
        assign(each, base_offset=2, leader_epoch=1)
    assert faults(state(whole, following), (), left, following) == []
    assert "its timestamp is" in faults(state(whole, newer), (), left, following)[0]


def test_a_gap_shows_that_a_topic_was_compacted_whatever_its_configs_say() -> None:
    """The broker's default policy compacts, or the topic's own did before it was changed."""
    later = data(4, epoch=1), data(5, epoch=1, sequence=1)
    assert faults(state(later[0]), (), *later, base=4) != []
    assert faults(state(later[0]), (), WRITTEN[0], *later) == []


def test_only_a_later_start_leaves_an_older_batch_where_nothing_shows_a_compaction() -> None:
    """The local log was compacted first. The batches here are of leader epoch 1."""
    older = state(WRITTEN[0], WRITTEN[2])
    assert faults(older, (ABORTED,), *WRITTEN, offloaded_in=2) == []
    assert "last offset is 0" in faults(older, (ABORTED,), *WRITTEN, offloaded_in=1)[0]
    assert "is not in it" in faults(state(*WRITTEN), (), *WRITTEN, offloaded_in=2)[0], (
        "it has the transaction's records"
    )
    newer = state(*WRITTEN, data(3, epoch=1))
    assert "last offset is 3" in faults(newer, (ABORTED,), *WRITTEN, offloaded_in=2)[0]
