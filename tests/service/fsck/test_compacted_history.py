"""What the batches that compaction has left prove of a sidecar: the least that its producers may be, and no transaction."""

from __future__ import annotations

from typing import NamedTuple, cast

import pytest

from service.fsck.history import History
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import assign, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import AbortedTransaction, EpochEntry
from tests.storage_tiers.compaction.support import batch
from tests.storage_tiers.hot.support import marker

PRODUCER = 7


class Segment(NamedTuple):
    base: int
    end: int
    sidecar_key: str = "a sidecar"


def data(base: int, epoch: int = 0, sequence: int = 0) -> bytearray:
    made = bytearray(batch(("a", "1"), producer=(PRODUCER, epoch, sequence), transactional=True))
    assign(made, base_offset=base, leader_epoch=1)
    return made


def ended(base: int, kind: ControlKind) -> bytearray:
    made = bytearray(marker(kind, PRODUCER))
    assign(made, base_offset=base, leader_epoch=1)
    return made


def state(*batches: bytearray) -> bytes:
    """The snapshot that a broker has made after these."""
    known = ProducerStateManager(10)
    for each in batches:
        header = read_header(each)
        if header.control:
            known.update_marker(header, header.base_offset, coordinator_epoch=7, aborted=True, now_ms=0)
        else:
            known.update(header, header.base_offset, now_ms=0)
    return known.snapshot()


def faults(snapshot: bytes, aborted: tuple[AbortedTransaction, ...], *left: bytearray, base: int = 0) -> list[str]:
    found: list[str] = []
    history = History(base, 0, lambda _, fault: found.append(fault))
    for each in left:
        history.add(read_header(each), memoryview(each))
    end = read_header(left[-1]).next_offset
    sidecar = Sidecar(base, end, 0, 0, aborted=aborted, epochs=(EpochEntry(1, 0),), producer_snapshot=snapshot)
    history.finish(cast(RemoteSegment, Segment(base, end)), sidecar)
    history.close()
    return found


WRITTEN = data(0), data(1, sequence=1), ended(2, ControlKind.ABORT)
ABORTED = AbortedTransaction(PRODUCER, 0, 2, 3)


def test_a_whole_history_proves_all_of_it() -> None:
    assert faults(state(*WRITTEN), (ABORTED,), *WRITTEN) == []
    assert "not in it" in faults(state(*WRITTEN), (), *WRITTEN)[0]
    assert "last offset is 0" in faults(state(WRITTEN[0], WRITTEN[2]), (ABORTED,), *WRITTEN)[0]
    assert "in no batch" in faults(state(data(0)), (), _foreign())[0]


def _foreign() -> bytearray:
    made = bytearray(batch(("a", "1")))
    assign(made, base_offset=0, leader_epoch=1)
    return made


@pytest.mark.parametrize("left", [WRITTEN[1:], WRITTEN[2:], (WRITTEN[0], WRITTEN[2])])
def test_what_compaction_has_removed_is_no_fault(left: tuple[bytearray, ...]) -> None:
    assert faults(state(*WRITTEN), (ABORTED,), *left) == []
    assert faults(state(*WRITTEN), (), *left) == []


def test_a_snapshot_below_what_is_left_is_a_fault() -> None:
    assert faults(state(WRITTEN[0]), (), *WRITTEN[1:]) == [
        "producer 7 at offset 3: its last offset is 0 in the snapshot, 1 in what compaction has left"
    ]
    newer = data(3, epoch=1)
    assert "its epoch is 0" in faults(state(*WRITTEN), (), WRITTEN[1], newer)[0]
    assert faults(state(*WRITTEN, newer), (), WRITTEN[1], ended(4, ControlKind.ABORT)) == []


def test_a_producer_that_is_gone_is_no_fault_once_something_is_missing() -> None:
    other = _foreign()
    assign(other, base_offset=5, leader_epoch=1)
    assert faults(state(*WRITTEN), (), other) == []
