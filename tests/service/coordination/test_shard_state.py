"""The table of a shard's states: every pair is there, and nothing else sets a state."""

from __future__ import annotations

import ast
import inspect

import pytest

from service.coordination import runtime
from service.coordination.shard_state import TRANSITIONS, ShardEvent, ShardState, UnexpectedShardEvent, state_after


def test_the_table_has_every_state_and_every_event() -> None:
    assert {state: set(row) for state, row in TRANSITIONS.items()} == {state: set(ShardEvent) for state in ShardState}


def test_every_state_is_reached_and_only_closed_is_the_last() -> None:
    following = {state: {each for each in row.values() if each is not None} for state, row in TRANSITIONS.items()}
    reached = {ShardState.LOADING}
    while more := set().union(*(following[each] for each in reached)) - reached:
        reached |= more
    assert reached == set(ShardState)
    assert {state for state, states in following.items() if states <= {state}} == {ShardState.CLOSED}


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state, row in TRANSITIONS.items() for event, following in row.items() if following is None],
)
def test_an_event_that_cannot_happen_is_a_defect(state: ShardState, event: ShardEvent) -> None:
    with pytest.raises(UnexpectedShardEvent, match=f"{state.value} {event.value}"):
        state_after(state, event)


def test_a_host_has_one_assignment_of_its_state() -> None:
    assigned = [
        target
        for node in ast.walk(ast.parse(inspect.getsource(runtime)))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for top in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(top)
        if isinstance(target, ast.Attribute) and target.attr == "state"
    ]
    assert len(assigned) == 1
