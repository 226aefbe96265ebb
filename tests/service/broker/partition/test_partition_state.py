"""The high watermark: never past the log end, the slowest in-sync follower, or an append that still needs its flush; and the
last stable offset, never past the high watermark or the oldest open transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.broker.partition.state import PartitionState


def alone(log_end: int = 0) -> PartitionState:
    state = PartitionState(leader_epoch=1, log_end=log_end, high_watermark=log_end)
    state.lead(1)
    return state


def replicated(*followers: int, log_end: int = 0) -> PartitionState:
    state = PartitionState(leader_epoch=1, log_end=log_end, high_watermark=0)
    state.lead(1, followers)
    return state


def test_a_quorum_of_one_commits_at_once() -> None:
    state = alone()
    assert state.appended(0, 5, hold_until_flushed=False)
    assert state.high_watermark == 5


def test_an_append_that_must_be_flushed_delays_itself_and_later_ones() -> None:
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
    state = replicated(2, 3)
    assert not state.appended(0, 10, hold_until_flushed=False)
    assert not state.follower_at(2, 10)
    assert state.follower_at(3, 4)
    assert state.high_watermark == 4
    assert state.set_in_sync([2])
    assert state.high_watermark == 10


def test_a_follower_outside_the_in_sync_set_counts_for_nothing() -> None:
    state = replicated(2)
    state.appended(0, 10, hold_until_flushed=False)
    assert not state.follower_at(9, 10)
    assert state.high_watermark == 0


@pytest.mark.parametrize(("checkpoint", "known"), [(0, 3), (2, 3), (3, 3), (5, 5), (9, 9), (10, 9), (1 << 40, 9)])
def test_a_checkpoint_outside_of_the_log_counts_as_its_nearer_end(checkpoint: int, known: int) -> None:
    state = PartitionState(leader_epoch=1, log_start=3, log_end=9, high_watermark=checkpoint)
    assert state.high_watermark == known


def test_nothing_is_committed_by_a_node_that_does_not_lead() -> None:
    state = PartitionState(leader_epoch=1, log_end=5, high_watermark=2)
    assert not state.appended(5, 8, hold_until_flushed=False)
    assert not state.flushed(8)
    assert not state.set_in_sync(())
    assert (state.high_watermark, state.log_end) == (2, 8)


def test_a_new_leader_without_followers_commits_its_log_at_once() -> None:
    state = PartitionState(leader_epoch=1, log_end=9, high_watermark=4)
    assert state.lead(2)
    assert (state.high_watermark, state.leader_epoch) == (9, 2)


def test_a_new_leader_waits_for_every_in_sync_follower_to_report() -> None:
    state = PartitionState(leader_epoch=1, log_end=9, high_watermark=4)
    assert not state.lead(2, [2, 3])
    assert not state.follower_at(2, 9)
    assert not state.follower_at(3, 1)  # below the high watermark, which does not fall
    assert state.high_watermark == 4
    assert state.follower_at(3, 7)
    assert state.high_watermark == 7


def test_a_follower_that_leaves_and_returns_is_waited_for_again() -> None:
    state = replicated(2, 3)
    state.appended(0, 10, hold_until_flushed=False)
    state.follower_at(2, 10)
    state.follower_at(3, 4)
    assert state.set_in_sync([2])
    assert not state.set_in_sync([2, 3])
    state.appended(10, 12, hold_until_flushed=False)
    assert not state.follower_at(2, 12)
    assert state.follower_at(3, 11)
    assert state.high_watermark == 11


def test_a_later_epoch_of_the_same_leader_keeps_what_its_followers_have_reported() -> None:
    state = replicated(2)
    state.appended(0, 10, hold_until_flushed=False)
    state.follower_at(2, 6)
    assert not state.lead(5, [2])
    assert state.follower_at(2, 8)
    assert state.high_watermark == 8


def test_a_former_leader_neither_counts_its_flushes_nor_its_followers() -> None:
    state = replicated(2)
    state.appended(0, 4, hold_until_flushed=True)
    state.follow()
    assert not state.follower_at(2, 4)
    assert not state.lead(2)
    assert state.high_watermark == 0, "the append still waits for its flush"
    state.follow()
    assert not state.flushed(4)
    assert state.lead(3)
    assert state.high_watermark == 4


def test_a_new_leader_is_behind_its_epoch_until_earlier_records_are_committed() -> None:
    state = replicated(2, log_end=5)
    assert (state.epoch_start, state.is_behind_epoch) == (5, True)
    state.appended(5, 9, hold_until_flushed=False)
    state.follower_at(2, 4)
    assert state.is_behind_epoch
    state.follower_at(2, 5)
    assert not state.is_behind_epoch
    state.lead(1, [2])
    assert state.epoch_start == 5
    state.lead(2, [2])
    assert (state.epoch_start, state.is_behind_epoch) == (9, True)
    state.follow()
    assert not state.is_behind_epoch
    state.begin_at(40)
    state.lead(3)
    assert not state.is_behind_epoch


@pytest.mark.parametrize(("configured", "replicas", "effective"), [(1, 1, 1), (2, 1, 1), (2, 3, 2), (5, 3, 3)])
def test_the_minimum_of_in_sync_replicas_is_never_above_the_replicas(
    configured: int, replicas: int, effective: int
) -> None:
    state = alone()
    state.set_min_in_sync(configured, replicas)
    assert state.min_in_sync == effective
    assert state.is_under_min_in_sync == (effective > 1)


def test_below_the_minimum_of_in_sync_replicas_nothing_is_committed() -> None:
    state = alone()
    assert not state.set_min_in_sync(2, 3)
    assert not state.appended(0, 5, hold_until_flushed=False)
    assert not state.flushed(5)
    assert state.high_watermark == 0
    assert not state.set_in_sync([2])
    assert not state.is_under_min_in_sync
    assert state.follower_at(2, 5)
    assert state.high_watermark == 5
    state.appended(5, 9, hold_until_flushed=False)
    state.set_in_sync(())
    assert state.is_under_min_in_sync
    assert state.high_watermark == 5
    assert state.set_min_in_sync(1, 3)
    assert state.high_watermark == 9


def test_the_last_stable_offset_is_the_lower_of_the_high_watermark_and_the_first_unstable_offset() -> None:
    state = alone()
    state.appended(0, 10, hold_until_flushed=False)
    assert state.last_stable_offset == 10
    assert not state.set_first_unstable(4)
    assert state.last_stable_offset == 4
    state.appended(10, 20, hold_until_flushed=False)
    assert state.last_stable_offset == 4
    assert state.set_first_unstable(15)
    assert state.last_stable_offset == 15
    assert state.set_first_unstable(None)
    assert state.last_stable_offset == 20


def test_a_transaction_above_the_high_watermark_holds_nothing_back() -> None:
    state = replicated(2)
    state.appended(0, 10, hold_until_flushed=False)
    state.follower_at(2, 3)
    assert not state.set_first_unstable(7)
    assert state.last_stable_offset == 3
    assert not state.set_first_unstable(8)
    state.follower_at(2, 10)
    assert state.last_stable_offset == 8


def test_only_truncation_lowers_the_high_watermark() -> None:
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
def test_the_high_watermark_equals_its_definition_and_never_falls(
    events: list[tuple[str, int, bool]], has_follower: bool
) -> None:
    state = alone()
    if has_follower:
        state.set_in_sync([2])
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
        elif has_follower:
            follower = max(follower, min(number, state.log_end))
            state.follower_at(2, follower)
        bound = min([state.log_end, *([follower] if has_follower else []), *(h[0] for h in holds)])
        assert state.high_watermark == max(before, bound)
        before = state.high_watermark
