"""Each deadline is due once, in order and never early; moving a deadline later costs no entry."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from service.coordination import deadlines as tested
from service.coordination.deadlines import MOST_OFF, OFF, Deadlines, Timer


def names(deadlines: Deadlines, now_ms: int) -> list[object]:
    return [timer.owner for timer in deadlines.due(now_ms)]


def test_timers_are_due_in_the_order_of_their_deadlines() -> None:
    deadlines = Deadlines()
    for name, at_ms in (("b", 20), ("a", 10), ("c", 30)):
        deadlines.set(Timer(name), at_ms)
    assert deadlines.next_ms() == 10
    assert names(deadlines, 9) == []
    assert names(deadlines, 20) == ["a", "b"]
    assert names(deadlines, 20) == []
    assert names(deadlines, 30) == ["c"]
    assert deadlines.next_ms() is None


def test_a_thousand_heartbeats_add_no_entry() -> None:
    deadlines, timer = Deadlines(), Timer("member")
    for now in range(1000):
        deadlines.set(timer, now + 10_000)
    assert len(deadlines) == 1
    assert names(deadlines, 10_000) == []
    assert (len(deadlines), deadlines.next_ms()) == (1, 10_999)
    assert names(deadlines, 10_999) == ["member"]


def test_a_deadline_that_moves_earlier_is_due_then_and_only_then() -> None:
    deadlines, timer = Deadlines(), Timer("member")
    deadlines.set(timer, 300)
    deadlines.set(timer, 10)
    assert names(deadlines, 10) == ["member"]
    deadlines.set(timer, 400)
    assert names(deadlines, 300) == []
    assert names(deadlines, 400) == ["member"]


def test_a_stale_entry_is_dropped_and_not_queued_again() -> None:
    deadlines, timer = Deadlines(), Timer("member")
    deadlines.set(timer, 300)
    deadlines.set(timer, 10)
    deadlines.set(timer, 500)
    assert names(deadlines, 10) == names(deadlines, 300) == []
    assert len(deadlines) == 1
    assert names(deadlines, 500) == ["member"]


def test_a_cleared_timer_is_not_due_until_it_is_set_again() -> None:
    deadlines, timer = Deadlines(), Timer("member")
    deadlines.set(timer, 10)
    deadlines.clear(timer)
    assert names(deadlines, 10) == []
    deadlines.set(timer, 20)
    assert names(deadlines, 20) == ["member"]


def test_a_timer_that_is_set_while_others_are_due_is_due_too() -> None:
    deadlines, second = Deadlines(), Timer("second")
    deadlines.set(Timer("first"), 10)
    seen = []
    for timer in deadlines.due(10):
        seen.append(timer.owner)
        if timer.owner == "first":
            deadlines.set(second, 5)
    assert seen == ["first", "second"]


def test_one_call_looks_at_a_bounded_number_of_entries_even_if_none_is_due() -> None:
    """All members of a large group have their deadlines at one time, and heartbeats have moved most of them."""
    deadlines, timers = Deadlines(), [Timer(number) for number in range(5)]
    for timer in timers:
        deadlines.set(timer, 10)
    for timer in timers[:4]:
        deadlines.set(timer, 100)
    assert [timer.owner for timer in deadlines.due(10, 4)] == []
    assert deadlines.next_ms() == 10
    assert [timer.owner for timer in deadlines.due(10, 4)] == [4]
    assert deadlines.next_ms() == 100


def test_a_timer_that_is_held_is_still_due_unless_it_was_set_or_cleared() -> None:
    deadlines, timers = Deadlines(), [Timer(number) for number in range(3)]
    for timer in timers:
        deadlines.set(timer, 10)
    for timer in deadlines.due(10):
        deadlines.hold(timer, 10)
    assert names(deadlines, 50) == [] and deadlines.next_ms() is None
    deadlines.set(timers[1], 60)
    deadlines.clear(timers[2])
    assert [deadlines.is_still_due(timer, 10) for timer in timers] == [True, False, False]
    assert [deadlines.is_still_due(timer, 10) for timer in timers] == [False, False, False]
    assert names(deadlines, 60) == [1]


def test_timers_that_were_cleared_keep_no_entry_until_their_time() -> None:
    """Clients may come and go by the thousand, each with a session of half an hour."""
    deadlines, kept = Deadlines(), [Timer(number) for number in range(100)]
    for number, timer in enumerate(kept):
        deadlines.set(timer, 1_000 + number)
    most = 0
    for number in range(20_000):
        gone = Timer("gone")
        deadlines.set(gone, 1_800_000 - number)
        deadlines.clear(gone)
        most = max(most, len(deadlines))
    assert most < 3 * MOST_OFF
    assert names(deadlines, 1_800_000) == list(range(100))
    assert len(deadlines) == 0


def test_a_timer_that_is_set_again_while_entries_move_is_due_once() -> None:
    deadlines, timers = Deadlines(), [Timer(number) for number in range(2 * MOST_OFF)]
    for number, timer in enumerate(timers):
        deadlines.set(timer, 10_000 + number)
    for timer in timers[:-1]:
        deadlines.clear(timer)
    assert 0 < len(deadlines) < 2 * MOST_OFF
    for number, timer in enumerate(timers[:-1]):
        deadlines.set(timer, 5_000 + number if number % 2 else 20_000 + number)
    assert names(deadlines, 9_999) == list(range(1, len(timers) - 1, 2))
    assert sorted(map(repr, names(deadlines, 50_000))) == sorted(
        map(repr, (*range(0, len(timers), 2), len(timers) - 1))
    )
    assert len(deadlines) == 0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 60)),
            st.tuples(st.just("clear"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("wait"), st.just(0), st.integers(0, 20)),
        ),
        max_size=60,
    ),
    st.sampled_from((0, 1, MOST_OFF)),
)
def test_due_timers_are_those_that_a_full_scan_finds(steps: list[tuple[str, int, int]], most_off: int) -> None:
    with patch.multiple(tested, MOST_OFF=most_off, MOVED=1):
        _compare_with_a_full_scan(steps)


def _compare_with_a_full_scan(steps: list[tuple[str, int, int]]) -> None:
    deadlines, timers, expected, now = Deadlines(), [Timer(index) for index in range(5)], {}, 0
    for step, index, amount in steps:
        if step == "set":
            deadlines.set(timers[index], now + amount)
            expected[index] = now + amount
        elif step == "clear":
            deadlines.clear(timers[index])
            expected.pop(index, None)
        else:
            now += amount
            due = sorted(index for index, at_ms in expected.items() if at_ms <= now)
            next_ms = deadlines.next_ms()
            assert not due or (next_ms is not None and next_ms <= now)
            assert sorted(timer.owner for timer in deadlines.due(now)) == due  # type: ignore[type-var]
            for index in due:
                del expected[index]
    assert all(timer.at_ms == expected.get(index, OFF) for index, timer in enumerate(timers))
