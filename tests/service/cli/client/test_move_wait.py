"""Waiting for moves: progress, a pause with its reason, moves that end in another way, and a cluster that does not answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

from service.cli.client import move_wait, transactions
from service.cli.client.move_planner import Placement, PlannedMove
from service.cli.client.move_wait import SETTLED_S, UNANSWERED_S, MoveState, MoveWait
from service.cli.errors import NodeUnreachable

A, B = PlannedMove("t", 0, 1, 2), PlannedMove("t", 1, 1, 2)
MOVING = [Placement("t", 0, 1, target=2), Placement("t", 1, 1, target=2)]
MOVED = [Placement("t", 0, 2), Placement("t", 1, 2)]
HALF = [MOVED[0], MOVING[1]]


class Watched:
    """A wait whose looks return the given answers, and then the last one again; its time passes only while it
    sleeps."""

    def __init__(self, *answers: Sequence[Placement] | NodeUnreachable) -> None:
        self._answers: Iterator[Sequence[Placement] | NodeUnreachable] = iter(answers)
        self._last: Sequence[Placement] | NodeUnreachable = ()
        self.seconds = 0.0
        self.wait = MoveWait([A, B], self._look, lambda moves: f"why {len(moves)}", lambda: self.seconds, self._sleep)

    def _look(self, topics: Iterable[str]) -> Sequence[Placement]:
        assert set(topics) == {"t"}
        self._last = next(self._answers, self._last)
        if isinstance(self._last, NodeUnreachable):
            raise self._last
        return self._last

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_it_ends_when_no_move_is_left() -> None:
    watched = Watched(MOVING, HALF, MOVED)
    assert watched.wait.run(None) == {A: MoveState.MOVED, B: MoveState.MOVED}
    assert watched.seconds == 1.0


def test_it_prints_progress_and_the_reason_of_a_pause(capsys: pytest.CaptureFixture[str]) -> None:
    Watched(*[MOVING] * 10, *[HALF] * 20, MOVED).wait.run(None)
    assert capsys.readouterr().err.splitlines() == [
        "tidelog: nothing has moved for 3 s; waiting for t-0, t-1: why 2",
        "tidelog: 1 of 2 moves ended",
        "tidelog: nothing has moved for 3 s; waiting for t-1: why 1",
    ]


def test_a_timeout_ends_it_with_what_is_left() -> None:
    watched = Watched(HALF)
    assert watched.wait.run(2) == {A: MoveState.MOVED, B: MoveState.MOVING}
    assert watched.seconds == 2.0


def test_a_move_that_begins_late_is_waited_for() -> None:
    before = [Placement("t", 0, 1), Placement("t", 1, 1)]
    assert Watched(before, before, MOVING, MOVED).wait.run(None) == {A: MoveState.MOVED, B: MoveState.MOVED}


def test_a_move_that_was_cancelled_or_whose_topic_is_gone_ends_it() -> None:
    watched = Watched(MOVING, [Placement("t", 0, 1)])
    assert watched.wait.run(None) == {A: MoveState.CANCELLED, B: MoveState.DELETED}
    assert watched.seconds > SETTLED_S


def test_a_broker_that_is_away_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_wait, "require_reachable", lambda bootstrap: bootstrap)
    for live, said in ((1, "broker 2, which will get t-0, is away"), (2, "broker 1, which has t-0, is away")):
        known = transactions.Cluster({live: "h:1"}, [], {})
        monkeypatch.setattr(transactions, "cluster_of", lambda *_, found=known: found)
        assert move_wait.why_waiting("h:1", [A, B]) == said


def test_a_cluster_that_does_not_answer_is_asked_again_for_a_while() -> None:
    away = NodeUnreachable("cannot reach it")
    assert Watched(MOVING, away, away, MOVED).wait.run(None) == {A: MoveState.MOVED, B: MoveState.MOVED}
    watched = Watched(MOVING, away)
    with pytest.raises(NodeUnreachable, match=r"^cannot reach it; the moves continue$"):
        watched.wait.run(None)
    assert watched.seconds > UNANSWERED_S
