"""Tables of a supervisor's steps: a snapshot of its brokers on one side, the steps on the other."""

from __future__ import annotations

from functools import partial

import pytest

from service.supervisor.decisions import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    STEADY_S,
    STOP_S,
    BrokerState,
    Decision,
    Step,
    Verb,
    cannot_go_on,
    decide,
)

ONE, TWO, THREE = BrokerState(1, goes_first=True), BrokerState(2), BrokerState(3)
SERVING = [each.started(pid, 0.0).announced() for pid, each in ((11, ONE), (12, TWO), (13, THREE))]
YOUNG = TWO.started(12, 99.0).announced()


def steps(verb: Verb, *ids: int) -> tuple[Step, ...]:
    return tuple(Step(verb, broker) for broker in ids)


START, ASK, KILL = (partial(steps, verb) for verb in Verb)


def down(state: BrokerState, at: float = 100.0) -> BrokerState:
    return state.ended(at, cannot_run=False)


@pytest.mark.parametrize(
    ("brokers", "now", "wanted", "again"),
    [
        ([ONE, TWO, THREE], 0.0, START(1), None),
        ([ONE.started(11, 0.0), TWO, THREE], 1.0, (), None),
        ([SERVING[0], TWO, THREE], 1.0, START(2, 3), None),
        (SERVING, 1.0, (), None),
        # without a controller of its own, all start at once
        ([TWO, THREE], 0.0, START(2, 3), None),
        # a broker that has ended is started again, after a pause unless it has served for long; the others continue
        ([SERVING[0], down(SERVING[1]), SERVING[2]], 100.0, START(2), None),
        ([SERVING[0], down(YOUNG), SERVING[2]], 100.0, (), 100.0 + FIRST_PAUSE_S),
        ([SERVING[0], down(YOUNG), SERVING[2]], 100.0 + FIRST_PAUSE_S, START(2), None),
        # the controller's broker has served before and is away: the others are started without it
        ([down(SERVING[0]), SERVING[1], down(SERVING[2])], 101.0, START(1, 3), None),
        ([down(ONE.started(11, 99.0)), TWO, THREE], 100.0, (), 100.0 + FIRST_PAUSE_S),
    ],
)
def test_brokers_are_started(
    brokers: list[BrokerState], now: float, wanted: tuple[Step, ...], again: float | None
) -> None:
    assert decide(brokers, now, stopping=False) == Decision(wanted, again)


ASKED = [each.asked(200.0) for each in SERVING]
LATE = 200.0 + STOP_S


@pytest.mark.parametrize(
    ("brokers", "now", "wanted", "again"),
    [
        (SERVING, 200.0, ASK(2, 3), LATE),
        ([SERVING[0], *ASKED[1:]], 201.0, (), LATE),
        ([SERVING[0], down(ASKED[1]), ASKED[2]], LATE, KILL(3), None),
        ([SERVING[0], down(ASKED[1]), ASKED[2].killed_now()], LATE, (), None),
        ([SERVING[0], down(ASKED[1]), down(ASKED[2])], 201.0, ASK(1), 201.0 + STOP_S),
        ([ASKED[0], down(ASKED[1]), down(ASKED[2])], LATE, KILL(1), None),
        # a broker without a process is not started while the others stop
        ([down(SERVING[0]), SERVING[1], down(SERVING[2])], 300.0, ASK(2), 300.0 + STOP_S),
    ],
)
def test_brokers_are_stopped_before_their_controller(
    brokers: list[BrokerState], now: float, wanted: tuple[Step, ...], again: float | None
) -> None:
    assert decide(brokers, now, stopping=True) == Decision(wanted, again)


def test_all_is_over_once_no_process_is_left() -> None:
    assert decide([down(each) for each in SERVING], 300.0, stopping=True).over
    assert decide([ONE, TWO], 300.0, stopping=True).over
    assert not decide([down(SERVING[0]), SERVING[1]], 300.0, stopping=True).over


def test_the_pause_grows_and_is_forgotten_after_steady_service() -> None:
    state, now, pauses = TWO, 0.0, []
    for _ in range(12):
        state = down(state.started(12, now), now)
        pauses.append(round(state.due_s - now, 3))
        now = state.due_s
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert state.restarts == 11
    steady = down(state.started(12, now), now + STEADY_S)
    assert steady.due_s == now + STEADY_S
    again = down(steady.started(12, steady.due_s), steady.due_s + 1)
    assert round(again.due_s - (steady.due_s + 1), 3) == FIRST_PAUSE_S


def test_a_process_that_the_system_refuses_is_tried_again() -> None:
    refused = TWO.not_started(100.0)
    assert (refused.pid, refused.due_s) == (None, 100.0 + FIRST_PAUSE_S)


def test_a_broker_that_never_served_ends_all_and_no_other_does() -> None:
    wrong = TWO.started(12, 0.0).ended(1.0, cannot_run=True)
    assert cannot_go_on([SERVING[0], wrong])
    assert not cannot_go_on([SERVING[0], SERVING[1].ended(1.0, cannot_run=True)])
    assert not cannot_go_on([SERVING[0], down(TWO.started(12, 0.0))])
