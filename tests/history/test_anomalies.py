"""The judge on histories of a few operations: a sound history has no anomaly, and each kind of damage is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history.anomalies import TOLD, Kind, anomalies, told
from tests.history.cycles import components
from tests.history.operations import Operation, Operations, Outcome, Polled, Sent

X, Y = "x", "y"


def sound() -> list[Operation]:
    """Two processes send to two keys. One of their transactions is aborted, and one has no answer. A third process reads. x has
    markers at 2 and 4 and the aborted record at 3; y has markers at 2 and 4."""
    return [
        Operation("a", Outcome.OK, 0, 10, (Sent(X, 1, 0), Sent(X, 2, 1), Sent(Y, 3, 0), Sent(Y, 4, 1)), commit=8),
        Operation("b", Outcome.FAILED, 11, 15, (Sent(X, 5, 3), Polled(Y, 3, 0), Polled(Y, 4, 1)), group="g"),
        Operation(
            "b",
            Outcome.OK,
            16,
            30,
            (Polled(Y, 3, 0), Polled(Y, 4, 1), Sent(Y, 6, 3)),
            commit=20,
            moved=frozenset(Y),
            group="g",
        ),
        Operation("a", Outcome.UNKNOWN, 11, 40, (Sent(X, 7, 5), Sent(X, 8), Sent(Y, 9)), commit=35),
        Operation("c", Outcome.OK, 5, 12, (Polled(X, 1, 0),)),
        Operation("c", Outcome.OK, 13, 60, (Polled(X, 2, 1), Polled(X, 7, 5), Polled(X, 8, 6))),
        Operation(
            "reader",
            Outcome.OK,
            50,
            60,
            (
                *(Polled(X, value, offset) for value, offset in ((1, 0), (2, 1), (7, 5), (8, 6))),
                *(Polled(Y, value, offset) for value, offset in ((3, 0), (4, 1), (6, 3), (9, 5))),
            ),
            whole=frozenset((X, Y)),
        ),
    ]


def judge(done: list[Operation]) -> set[Kind]:
    return set(anomalies(Operations(done)))


def edited(number: int, *, without: int | None = None, swap: tuple[int, int] | None = None) -> list[Operation]:
    """The sound history with one operation's steps changed."""
    done = sound()
    steps = list(done[number].steps)
    if without is not None:
        del steps[without]
    if swap is not None:
        one, other = swap
        steps[one], steps[other] = steps[other], steps[one]
    done[number] = replace(done[number], steps=tuple(steps))
    return done


def with_step(number: int, at: int, step: Sent | Polled) -> list[Operation]:
    done = sound()
    steps = list(done[number].steps)
    steps[at : at + 1] = [step]
    done[number] = replace(done[number], steps=tuple(steps))
    return done


def test_a_sound_history_has_no_anomaly() -> None:
    assert anomalies(Operations(sound())) == {}


def test_an_unseen_transaction_without_an_answer_is_no_anomaly() -> None:
    assert judge([Operation("a", Outcome.UNKNOWN, 0, 10, (Sent(X, 1, 0), Sent(Y, 2, 0)), commit=5)]) == set()


def test_a_value_that_was_never_sent_is_invented() -> None:
    assert Kind.INVENTED in judge(with_step(5, 2, Polled(X, 99, 6)))


def test_a_value_of_another_key_is_invented() -> None:
    assert Kind.INVENTED in judge(with_step(5, 2, Polled(Y, 8, 6)))


def test_two_values_at_one_offset_are_inconsistent() -> None:
    assert Kind.INCONSISTENT_OFFSETS in judge(with_step(5, 2, Polled(X, 8, 5)))


def test_an_acknowledged_offset_that_is_another_values_is_inconsistent() -> None:
    assert Kind.INCONSISTENT_OFFSETS in judge(with_step(0, 1, Sent(X, 2, 0)))


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    assert Kind.DUPLICATE in judge(with_step(5, 2, Polled(X, 8, 7)))


def test_a_value_below_what_was_polled_is_lost() -> None:
    """Both readers of x miss its offset 1."""
    done = edited(5, without=0)
    done[6] = replace(done[6], steps=tuple(step for step in done[6].steps if step.value != 2))
    assert Kind.LOST_WRITE in judge(done)


def test_a_value_that_was_polled_once_and_vanished_is_lost() -> None:
    """Another reader has seen the last record of y, and the whole reading does not hold this record."""
    done = edited(6, without=7)
    done.insert(6, Operation("d", Outcome.OK, 41, 49, (Polled(Y, 9, 5),)))
    assert {Kind.LOST_WRITE, Kind.INTERMEDIATE_READ} == judge(done)


def test_the_newest_value_is_unseen_if_it_is_never_polled() -> None:
    done = sound()
    done.append(Operation("a", Outcome.OK, 70, 80, (Sent(X, 10, 9),), commit=75))
    assert judge(done) == {Kind.UNSEEN}


def test_a_value_of_an_aborted_transaction_is_an_aborted_read() -> None:
    done = edited(5, without=1)
    done[5] = replace(done[5], steps=(Polled(X, 2, 1), Polled(X, 5, 3), *done[5].steps[1:]))
    assert Kind.ABORTED_READ in judge(done)


def test_a_value_of_a_transaction_that_has_not_asked_to_commit_is_an_intermediate_read() -> None:
    done = sound()
    done[0] = replace(done[0], end=20, commit=18)
    assert judge(done) == {Kind.INTERMEDIATE_READ}


def test_a_value_of_the_readers_own_open_transaction_is_an_intermediate_read() -> None:
    done = sound()
    done[2] = replace(done[2], steps=(*done[2].steps, Polled(Y, 6, 3)))
    assert judge(done) == {Kind.INTERMEDIATE_READ}


def test_half_of_a_transaction_is_an_intermediate_read() -> None:
    done = edited(6, without=7)
    assert Kind.INTERMEDIATE_READ in judge(done)


def test_a_skip_within_an_operation_is_found() -> None:
    assert judge(edited(5, without=1)) == {Kind.INTERNAL_POLL_SKIP}


def test_a_skip_between_two_operations_is_found() -> None:
    assert judge(edited(5, without=0)) == {Kind.EXTERNAL_POLL_SKIP}


def test_a_skip_from_the_beginning_of_the_log_is_found() -> None:
    assert Kind.EXTERNAL_POLL_SKIP in judge(edited(6, without=0))


def test_polls_that_go_back_are_found() -> None:
    assert Kind.NON_MONOTONIC_POLL in judge(edited(5, swap=(0, 1)))


def test_a_poll_that_repeats_the_last_one_of_the_previous_operation_is_found() -> None:
    done = sound()
    done[5] = replace(done[5], steps=(Polled(X, 1, 0), *done[5].steps))
    assert judge(done) == {Kind.NON_MONOTONIC_POLL}


def test_a_consumer_that_was_moved_may_go_back() -> None:
    done = sound()
    done[5] = replace(done[5], steps=(Polled(X, 1, 0), *done[5].steps), moved=frozenset(X))
    assert judge(done) == set()


def test_sends_of_one_transaction_in_the_wrong_order_are_found() -> None:
    done = edited(0, swap=(0, 1))
    assert judge(done) == {Kind.NON_MONOTONIC_SEND}


def test_sends_of_successive_transactions_in_the_wrong_order_are_found() -> None:
    first = Operation("a", Outcome.OK, 0, 10, (Sent(X, 1, 3),), commit=5)
    second = Operation("a", Outcome.OK, 9, 20, (Sent(X, 2, 0),), commit=15)
    read = Operation("r", Outcome.OK, 30, 40, (Polled(X, 2, 0), Polled(X, 1, 3)), whole=frozenset(X))
    assert judge([first, second, read]) == {Kind.NON_MONOTONIC_SEND}


def test_an_append_below_a_finished_one_is_a_write_cycle() -> None:
    first = Operation("a", Outcome.OK, 0, 10, (Sent(X, 1, 0), Sent(Y, 2, 2)), commit=5)
    second = Operation("b", Outcome.OK, 11, 20, (Sent(X, 3, 2), Sent(Y, 4, 0)), commit=15)
    read = Operation(
        "r",
        Outcome.OK,
        30,
        40,
        (Polled(X, 1, 0), Polled(X, 3, 2), Polled(Y, 4, 0), Polled(Y, 2, 2)),
        whole=frozenset((X, Y)),
    )
    found = anomalies(Operations([first, second, read]))
    assert found == {Kind.WRITE_CYCLE: ["b at 11 -> (ww y/0 and 2) a at 0 -> (time) b at 11"]}
    overlapping = replace(second, begin=9)
    assert judge([first, overlapping, read]) == set()


def test_two_transactions_that_read_from_each_other_are_an_information_cycle() -> None:
    first = Operation("a", Outcome.OK, 0, 20, (Sent(X, 1, 0), Polled(Y, 2, 0)), commit=15)
    second = Operation("b", Outcome.OK, 1, 21, (Sent(Y, 2, 0), Polled(X, 1, 0)), commit=16)
    found = anomalies(Operations([first, second]))
    assert list(found) == [Kind.INFORMATION_CYCLE]
    assert found[Kind.INFORMATION_CYCLE] == ["b at 1 -> (wr y/0) a at 0 -> (wr x/0) b at 1"]


def test_a_value_read_from_the_future_is_an_information_cycle() -> None:
    """The reader ended before the writer began, and so before the request for the writer's commit."""
    reader = Operation("a", Outcome.OK, 0, 5, (Polled(X, 1, 0),))
    writer = Operation("b", Outcome.OK, 6, 9, (Sent(X, 1, 0),), commit=8)
    assert judge([reader, writer]) == {Kind.INFORMATION_CYCLE, Kind.INTERMEDIATE_READ}


def test_a_value_in_two_committed_transactions_of_a_group_is_consumed_twice() -> None:
    done = sound()
    done[1] = replace(done[1], outcome=Outcome.OK, steps=done[1].steps[1:], commit=14)
    assert judge(done) == {Kind.CONSUMED_TWICE}


def compacted(begin: int, name: str = "k") -> Operations:
    """The whole reading lacks the older one of two values; the newer one has the name `name`, and its send began at `begin`."""
    return Operations(
        [
            Operation("a", Outcome.OK, 0, 10, (Sent(X, 1, 0, "k"),), commit=0),
            Operation("b", Outcome.OK, begin, begin + 10, (Sent(X, 2, 1, name),), commit=begin),
            Operation("r", Outcome.OK, 30, 60, (Polled(X, 2, 1),), whole=frozenset(X)),
        ],
        compacted=frozenset(X),
    )


def test_a_value_that_was_replaced_may_be_gone() -> None:
    assert anomalies(compacted(20)) == {}


def test_a_value_of_a_name_that_was_sent_once_may_not_be_gone() -> None:
    assert set(anomalies(compacted(20, "other"))) == {Kind.LOST_WRITE, Kind.EXTERNAL_POLL_SKIP}


def test_a_value_may_be_gone_only_once_its_replacement_was_being_sent() -> None:
    found = compacted(70)
    found.done[2] = replace(found.done[2], steps=())
    found.done.append(Operation("r", Outcome.OK, 90, 91, (Polled(X, 2, 1),)))
    assert set(anomalies(found)) == {Kind.LOST_WRITE}


def test_only_the_first_of_many_anomalies_are_listed() -> None:
    done = [Operation("a", Outcome.OK, 0, 1, tuple(Sent(X, number, number) for number in range(TOLD + 3)), commit=0)]
    lines = told(anomalies(Operations(done))).splitlines()
    assert len(lines) == TOLD + 1 and lines[-1] == "unseen: ... and 3 more"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({}, []),
        ({1: [2], 2: [3], 3: []}, []),
        ({1: [2], 2: [1]}, [{1, 2}]),
        ({1: [2], 2: [3], 3: [1, 4], 4: [5], 5: [4], 6: [1, 4]}, [{1, 2, 3}, {4, 5}]),
        ({number: [number + 1] for number in range(5000)} | {5000: [0]}, [set(range(5001))]),
    ],
)
def test_the_components_of_a_graph_are_found(graph: dict[int, list[int]], expected: list[set[int]]) -> None:
    assert sorted((set(found) for found in components(graph)), key=min) == expected
