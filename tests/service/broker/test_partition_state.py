"""The high watermark: never past the log end, the slowest in-sync follower, or an append that still needs its flush."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broker.partition.state import PartitionState


def alone(log_end: int = 0) -> PartitionState:
    return PartitionState(leader_epoch=1, log_end=log_end, high_watermark=log_end)


def test_a_quorum_of_one_commits_at_once() -> None:
    state = alone()
    assert state.appended(0, 5, hold_until_flushed=False)
    assert state.high_watermark == 5


def test_an_append_that_must_be_flushed_holds_itself_and_what_follows() -> None:
    state = alone()
    state.appended(0, 5, hold_until_flushed=False)
    assert not state.appended(5, 8, hold_until_flushed=True)
    assert not state.appended(8, 9, hold_until_flushed=False)
    assert state.high_watermark == 5
    assert state.flushed(8)
    assert state.high_watermark == 9


def test_a_flush_that_began_earlier_releases_only_what_it_covers() -> None:
    state = alone()
    state.appended(0, 1, hold_until_flushed=True)
    state.appended(1, 2, hold_until_flushed=True)
    assert state.flushed(1)
    assert state.high_watermark == 1
    assert not state.flushed(1)


def test_followers_bound_the_high_watermark() -> None:
    state = alone()
    state.set_in_sync({2: 0, 3: 0})
    assert not state.appended(0, 10, hold_until_flushed=False)
    assert not state.follower_at(2, 10)
    assert state.follower_at(3, 4)
    assert state.high_watermark == 4
    assert state.set_in_sync({2: 10})
    assert state.high_watermark == 10


def test_a_follower_outside_the_in_sync_set_counts_for_nothing() -> None:
    state = alone()
    state.set_in_sync({2: 0})
    state.appended(0, 10, hold_until_flushed=False)
    assert not state.follower_at(9, 10)
    assert state.high_watermark == 0


def test_only_truncation_lowers_it() -> None:
    state = alone(log_end=10)
    state.truncated(4)
    assert (state.high_watermark, state.log_end) == (4, 4)


def test_the_epoch_never_falls() -> None:
    state = alone()
    state.new_epoch(7)
    with pytest.raises(ValueError, match="below 7"):
        state.new_epoch(6)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.booleans()),
        st.tuples(st.just("flush"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("follower"), st.integers(0, 60), st.booleans()),
    ),
    max_size=40,
)


@given(EVENTS, st.booleans())
def test_it_equals_the_obvious_definition_and_never_falls(
    events: list[tuple[str, int, bool]], replicated: bool
) -> None:
    state = alone()
    if replicated:
        state.set_in_sync({2: 0})
    follower, holds, before = 0, list[tuple[int, int]](), 0
    for kind, number, flag in events:
        if kind == "append":
            base = state.log_end
            state.appended(base, base + number, hold_until_flushed=flag)
            if flag:
                holds.append((base, base + number))
        elif kind == "flush":
            state.flushed(min(number, state.log_end))
            holds = [h for h in holds if h[1] > number]
        elif replicated:
            follower = max(follower, min(number, state.log_end))
            state.follower_at(2, follower)
        bound = min([state.log_end, *([follower] if replicated else []), *(h[0] for h in holds)])
        assert state.high_watermark == max(before, bound)
        before = state.high_watermark
