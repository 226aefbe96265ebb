"""Plans of moves: to one broker, away from one, and evenly over all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.client.move_planner import (
    MovePlan,
    Obstacle,
    Placement,
    PlannedMove,
    call_off,
    drain,
    move_to,
    rebalance,
)

UNTIERED, LEADERLESS = Obstacle.UNTIERED, Obstacle.LEADERLESS


def placed(topic: str, *brokers: int) -> list[Placement]:
    """The topic's partitions from 0 on, one on each of these brokers."""
    return [Placement(topic, number, broker) for number, broker in enumerate(brokers)]


def after(placements: Iterable[Placement], plan: MovePlan) -> list[Placement]:
    """The placements once all moves have ended."""
    targets = {move.key: move.target for move in plan.moves}
    return [each._replace(broker=targets.get(each.key, each.destination), target=None) for each in sorted(placements)]


def brokers_of(placements: Iterable[Placement]) -> str:
    """Each topic with the brokers of its partitions in order, as in `a123 b12`."""
    found: dict[str, str] = {}
    for each in sorted(placements):
        found[each.topic] = found.get(each.topic, "") + str(each.broker)
    return " ".join(topic + brokers for topic, brokers in found.items())


def spread(placements: Iterable[Placement], live: Iterable[int]) -> int:
    counts = Counter(each.destination for each in placements)
    return max(counts[broker] for broker in live) - min(counts[broker] for broker in live)


# --- to one broker ----------------------------------------------------------------------------------------------------
def test_chosen_partitions_move_to_one_broker() -> None:
    rows = [
        Placement("a", 2, 1),
        Placement("a", 0, 3),
        Placement("a", 1, 2, target=3),
        Placement("a", 3, 1, target=2),
        Placement("a", 4, 3, target=1),
        Placement("b", 0, 1, obstacle=UNTIERED),
        Placement("b", 1, 2, obstacle=LEADERLESS),
        Placement("b", 2, 3, obstacle=UNTIERED),
    ]
    assert move_to(rows, 3) == MovePlan(
        moves=(PlannedMove("a", 2, 1, 3), PlannedMove("a", 3, 1, 3), PlannedMove("a", 4, 3, 3)),
        under_way=(PlannedMove("a", 1, 2, 3),),
        staying=(rows[5], rows[6]),
    )


def test_only_moves_in_progress_are_called_off() -> None:
    rows = [Placement("a", 1, 2, target=3, obstacle=LEADERLESS), Placement("a", 0, 1)]
    assert call_off(rows) == MovePlan((PlannedMove("a", 1, 2, 2),))


# --- away from one broker ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "live", "then"),
    [
        (placed("a", 1, 2, 3, 3), (1, 2, 3), "a1212"),
        (placed("a", 3, 3, 3) + placed("b", 3, 3, 3), (1, 2, 3), "a121 b212"),
        (placed("a", 3) + placed("b", 3) + placed("c", 3), (1, 2, 3), "a1 b2 c1"),
        (placed("a", 3, 3, 3, 3) + placed("b", 1, 1), (1, 2, 3), "a2121 b11"),
        (placed("a", 3, 2, 1), (1, 3), "a121"),
        (placed("a", 1, 2), (1, 2, 3), "a12"),
    ],
)
def test_a_drained_brokers_partitions_go_evenly_to_the_others(
    rows: list[Placement], live: Sequence[int], then: str
) -> None:
    plan = drain(rows, 3, live)
    assert brokers_of(after(rows, plan)) == then
    assert not plan.staying
    assert all(move.source == 3 for move in plan.moves)


def test_a_drain_takes_account_of_moves_in_progress() -> None:
    rows = [
        Placement("a", 0, 3, target=1),
        Placement("a", 1, 3),
        Placement("a", 2, 2, target=3),
        Placement("a", 3, 3, target=4),
        Placement("a", 4, 1, target=2),
    ]
    assert drain(rows, 3, (1, 2, 3)) == MovePlan(
        moves=(PlannedMove("a", 1, 3, 1), PlannedMove("a", 2, 2, 2), PlannedMove("a", 3, 3, 1)),
        under_way=(PlannedMove("a", 0, 3, 1),),
    )


def test_a_drain_names_what_cannot_move() -> None:
    rows = [Placement("a", 0, 3, obstacle=UNTIERED), Placement("a", 1, 1, obstacle=UNTIERED), Placement("b", 0, 3)]
    assert drain(rows, 3, (1, 3)) == MovePlan((PlannedMove("b", 0, 3, 1),), staying=(rows[0],))
    assert drain(rows, 3, (3,)) == MovePlan(staying=(rows[0], rows[2]))


# --- evenly over all --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "live", "then", "moves"),
    [
        (placed("a", 1, 1, 1, 1, 1), (1, 2, 3), "a11232", 3),
        (placed("a", 1, 1, 1, 2, 2, 2), (1, 2, 3), "a113223", 2),
        (placed("a", 1, 2, 3, 1), (1, 2, 3), "a1231", 0),
        (placed("a", 1) + placed("b", 1) + placed("c", 1), (1, 2, 3), "a2 b3 c1", 2),
        (placed("a", 1, 2, 1) + placed("b", 1, 2, 1), (1, 2), "a122 b121", 1),
        (placed("a", 1, 1, 4, 4), (1, 2), "a1244", 1),
        (placed("a", 1, 1), (1,), "a11", 0),
        ([], (1, 2), "", 0),
    ],
)
def test_partitions_are_spread_evenly_with_few_moves(
    rows: list[Placement], live: Sequence[int], then: str, moves: int
) -> None:
    plan = rebalance(rows, live)
    assert (brokers_of(after(rows, plan)), len(plan.moves)) == (then, moves)


def test_moves_in_progress_count_where_they_lead() -> None:
    rows = [Placement("a", 0, 1, target=2), Placement("a", 1, 1), Placement("a", 2, 1, target=2), Placement("a", 3, 1)]
    assert rebalance(rows, (1, 2)) == MovePlan(under_way=(PlannedMove("a", 0, 1, 2), PlannedMove("a", 2, 1, 2)))


def test_partitions_that_keep_it_uneven_are_named() -> None:
    fixed = [Placement("a", number, 1, obstacle=UNTIERED) for number in range(3)]
    rows = fixed + placed("b", 1, 1)
    assert rebalance(rows, (1, 2)) == MovePlan((PlannedMove("b", 1, 1, 2),), staying=tuple(fixed))
    assert rebalance(fixed[:1] + placed("b", 1, 2), (1, 2)) == MovePlan()


LIVE = st.sets(st.integers(1, 5), min_size=1)
TOPICS = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(1, 5), max_size=9), max_size=6)


def rows_of(topics: dict[str, list[int]]) -> list[Placement]:
    return [each for topic, brokers in topics.items() for each in placed(topic, *brokers)]


@given(LIVE, TOPICS, st.randoms(use_true_random=False))
def test_every_topic_and_all_brokers_are_even_afterwards(
    live: set[int], topics: dict[str, list[int]], chance: random.Random
) -> None:
    rows = [each for each in rows_of(topics) if each.broker in live]
    plan = rebalance(rows, live)
    chance.shuffle(rows)
    assert rebalance(rows, live) == plan
    then = after(rows, plan)
    assert spread(then, live) <= 1
    for topic in topics:
        assert spread((each for each in then if each.topic == topic), live) <= 1
    assert rebalance(then, live) == MovePlan()
    assert all(move.source != move.target and move.target in live for move in plan.moves)


@given(LIVE, TOPICS, st.data())
def test_no_topic_gets_less_even_if_some_partitions_cannot_move(
    live: set[int], topics: dict[str, list[int]], data: st.DataObject
) -> None:
    obstacles = st.sampled_from((None, None, UNTIERED, LEADERLESS))
    targets = st.sampled_from((None, None, 1, 2, 3, 4, 5))
    rows = [each._replace(obstacle=data.draw(obstacles), target=data.draw(targets)) for each in rows_of(topics)]
    rows = [each for each in rows if each.target != each.broker]
    plan = rebalance(rows, live)
    may_move = {each.key for each in rows if each.target is None and each.obstacle is None and each.broker in live}
    assert {move.key for move in plan.moves} <= may_move
    then = after(rows, plan)
    for topic in topics:
        before = spread((each for each in rows if each.topic == topic), live)
        assert spread((each for each in then if each.topic == topic), live) <= before


@given(LIVE, TOPICS, st.integers(1, 5))
def test_a_drained_broker_holds_nothing(live: set[int], topics: dict[str, list[int]], broker: int) -> None:
    rows = rows_of(topics)
    plan = drain(rows, broker, live)
    assert {move.key for move in plan.moves} | {each.key for each in plan.staying} == {
        each.key for each in rows if each.broker == broker
    }
    assert {move.target for move in plan.moves} <= live - {broker}
    assert bool(plan.staying) <= (live <= {broker})


def test_many_topics_are_planned_quickly() -> None:
    rows = [each for number in range(5000) for each in placed(f"t{number:04}", 1)]
    rows += [each for number in range(500) for each in placed(f"u{number:04}", *[1, 2] * 10)]
    plan = rebalance(rows, (1, 2, 3))
    assert spread(after(rows, plan), (1, 2, 3)) <= 1
