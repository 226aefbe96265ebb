"""The judge knows the bound of each loss: records at or above the bound may be missing, and records below it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history.anomalies import Kind, anomalies
from tests.history.operations import Decisions, Loss, Operation, Operations, Outcome, Polled, Sent

X, Y = "x", "y"
#: The time at which the disk with x was lost. The manifest of x ended at offset 2.
AT = 50


def history(*, kept: tuple[int, ...] = (1, 2), repeated: bool = True) -> list[Operation]:
    """The values 1 to 4 of x have the offsets 0 to 3, and only the values in `kept` remain. After the loss the values 5 and 6
    get the offsets 2 and 3. A follower saw the values 1 to 4, and then the new ones."""
    remaining = [(1, 0), (2, 1), (3, 2), (4, 3)]
    present = [(value, offset) for value, offset in remaining if value in kept]
    present += [(5, 2), (6, 3)] if repeated else []
    read = tuple(Polled(X, value, offset) for value, offset in present)
    return [
        Operation("a", Outcome.OK, 0, 10, (Sent(X, 1, 0), Sent(X, 2, 1), Sent(X, 3, 2), Sent(X, 4, 3)), commit=0),
        Operation("f", Outcome.OK, 11, 20, tuple(Polled(X, value, offset) for value, offset in remaining)),
        Operation("b", Outcome.OK, 60, 70, (Sent(X, 5, 2), Sent(X, 6, 3)), commit=60) if repeated else idle(60),
        Operation("f", Outcome.OK, 71, 80, tuple(step for step in read if step.value > 4)),
        Operation("reader", Outcome.OK, 90, 99, read, whole=frozenset((X,))),
    ]


def idle(begin: int) -> Operation:
    return Operation("b", Outcome.OK, begin, begin + 1)


def judge(done: list[Operation], *losses: Loss, decisions: tuple[Decisions, ...] = ()) -> set[Kind]:
    return set(anomalies(Operations(done, losses=list(losses), decisions=list(decisions))))


def test_records_above_the_bound_may_be_lost_and_their_offsets_be_given_again() -> None:
    assert judge(history(), Loss(X, 2, AT)) == set()


@pytest.mark.parametrize("repeated", [False, True])
def test_a_record_below_the_bound_may_not_be_lost(repeated: bool) -> None:
    found = judge(history(kept=(1,), repeated=repeated), Loss(X, 2, AT))
    assert Kind.LOST_WRITE in found


@pytest.mark.parametrize("loss", [(), (Loss(Y, 2, AT),)])
def test_nothing_may_be_lost_without_a_loss_of_that_key(loss: tuple[Loss, ...]) -> None:
    assert {Kind.LOST_WRITE, Kind.INCONSISTENT_OFFSETS} <= judge(history(), *loss)


def test_a_record_that_was_sent_after_the_loss_may_not_be_lost() -> None:
    done = history()
    done[4] = replace(done[4], steps=tuple(step for step in done[4].steps if step.value != 6))
    assert judge(done, Loss(X, 2, AT)) == {Kind.LOST_WRITE}


def test_a_record_that_was_sent_after_the_loss_is_in_one_place() -> None:
    done = history()
    done[3] = replace(done[3], steps=(*done[3].steps, Polled(X, 6, 4)))
    assert Kind.DUPLICATE in judge(done, Loss(X, 2, AT))


def test_a_record_that_remained_above_the_bound_is_seen_by_all() -> None:
    """The value 3 remains; the follower, which has not seen it, skips it."""
    done = history(kept=(1, 2, 3), repeated=False)
    done[1] = replace(done[1], steps=done[1].steps[:2])
    done[3] = replace(done[3], steps=(Polled(X, 7, 3),))
    done[2] = Operation("b", Outcome.OK, 60, 70, (Sent(X, 7, 3),), commit=60)
    done[4] = replace(done[4], steps=(*done[4].steps, Polled(X, 7, 3)))
    assert judge(done, Loss(X, 2, AT)) == {Kind.EXTERNAL_POLL_SKIP}


def test_a_follower_that_keeps_its_position_skips_the_new_records() -> None:
    """The follower has polled up to offset 1 when the log is cut at 2, and continues at 3 instead of 2."""
    done = history()
    done[1] = replace(done[1], steps=done[1].steps[:2])
    done[3] = replace(done[3], steps=done[3].steps[1:])
    assert judge(done, Loss(X, 2, AT)) == {Kind.EXTERNAL_POLL_SKIP}


def test_an_aborted_record_is_not_explained_by_a_loss() -> None:
    done = history()
    done[2] = replace(done[2], outcome=Outcome.FAILED)
    assert Kind.ABORTED_READ in judge(done, Loss(X, 2, AT))


def half(*, kept: int = 1) -> list[Operation]:
    """A transaction sends the values 1 and 2 to x and y; the whole reading holds only the value `kept`. An older transaction
    sent 3 and 4."""
    place = {1: Polled(X, 1, 3), 2: Polled(Y, 2, 3)}[kept]
    older = Polled(X, 3, 0), Polled(Y, 4, 0)
    read = sorted((*older, place), key=lambda step: (step.key, step.offset))
    return [
        Operation("a", Outcome.OK, 0, 5, (Sent(X, 3, 0), Sent(Y, 4, 0)), commit=4),
        Operation("a", Outcome.OK, 10, 20, (Sent(X, 1, 3), Sent(Y, 2, 3)), commit=15),
        Operation("reader", Outcome.OK, 90, 99, tuple(read), whole=frozenset((X, Y))),
    ]


def test_half_of_a_transaction_may_be_lost_with_its_key() -> None:
    assert judge(half(kept=2), Loss(X, 1, AT)) == set()
    assert Kind.LOST_WRITE in judge(half(kept=1), Loss(X, 1, AT))


def test_a_transaction_whose_decision_was_lost_may_be_undone() -> None:
    lost = (Decisions(AT, processes=frozenset("a")),)
    for kept in (1, 2):
        assert judge(half(kept=kept), decisions=lost) == set()
        assert judge(half(kept=kept), decisions=(Decisions(AT, processes=frozenset("b")),)) != set()
        assert judge(half(kept=kept), decisions=(Decisions(12, processes=frozenset("a")),)) != set()


def test_an_older_transaction_of_the_id_may_not_be_undone() -> None:
    done = half()
    done[2] = replace(done[2], steps=tuple(step for step in done[2].steps if step.value != 3))
    assert Kind.LOST_WRITE in judge(done, decisions=(Decisions(AT, processes=frozenset("a")),))


def test_a_group_consumes_again_only_what_it_had_consumed_before_the_loss() -> None:
    sent = Operation("a", Outcome.OK, 0, 5, (Sent(X, 1, 0),), commit=4)
    first = Operation("m", Outcome.OK, 6, 10, (Polled(X, 1, 0),), commit=8, group="g")
    second = Operation("n", Outcome.OK, 60, 70, (Polled(X, 1, 0),), commit=65, group="g", moved=frozenset((X,)))
    lost = (Decisions(AT, groups=frozenset("g")),)
    assert judge([sent, first, second], decisions=lost) == set()
    assert judge([sent, first, second]) == {Kind.CONSUMED_TWICE}
    third = replace(second, process="o", begin=71, end=80)
    assert judge([sent, first, second, third], decisions=lost) == {Kind.CONSUMED_TWICE}
