"""The time by which records expire, while the wall clock is being changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.broker.background.clock_watch import ClockWatch, Settled, Stepped

T0 = 1_700_000_000_000
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY


def watch() -> ClockWatch:
    return ClockWatch(T0, T0, tolerance_ms=MINUTE, settle_ms=DAY)


def test_without_clock_steps_expiry_follows_the_wall_clock() -> None:
    seen = watch()
    for second in range(1, 3600):
        now = T0 + second * 1000
        assert seen.look(now, now) is None
        assert seen.expiry_ms(now, now) == now


def test_a_clock_step_ahead_expires_nothing() -> None:
    seen = watch()
    assert seen.look(T0 + YEAR + 1000, T0 + 1000) == Stepped(YEAR)
    assert seen.step_ms == YEAR
    assert seen.expiry_ms(T0 + YEAR + 2000, T0 + 2000) == T0 + 2000  # elapsed time still counts
    assert seen.look(T0 + YEAR + 2000, T0 + 2000) is None  # reported once


def test_a_clock_step_ahead_expires_nothing_even_before_the_first_tick() -> None:
    assert watch().expiry_ms(T0 + YEAR, T0 + 5) == T0 + 5


def test_a_step_back_delays_expiry() -> None:
    seen = watch()
    assert seen.look(T0 - HOUR, T0) == Stepped(-HOUR)
    assert seen.expiry_ms(T0 - HOUR, T0) == T0 - HOUR


def test_a_clock_that_is_set_back_to_the_truth_is_trusted() -> None:
    seen = watch()
    seen.look(T0 + YEAR, T0)
    assert seen.look(T0 + 5000, T0 + 5000) == Settled("it was set back")
    assert seen.expiry_ms(T0 + 6000, T0 + 6000) == T0 + 6000
    assert seen.step_ms == 0


def test_a_step_that_the_store_confirms_was_a_correction() -> None:
    seen = watch()
    seen.look(T0 + YEAR, T0)
    assert seen.look(T0 + YEAR + 9, T0 + 9, T0 + YEAR + 400) == Settled("the object store's clock agrees")
    assert seen.expiry_ms(T0 + YEAR + 10, T0 + 10) == T0 + YEAR + 10


def test_a_step_that_the_store_denies_stays_one() -> None:
    seen = watch()
    seen.look(T0 + YEAR, T0)
    assert seen.look(T0 + YEAR + HOUR, T0 + HOUR, T0 + HOUR) is None
    assert seen.expiry_ms(T0 + YEAR + HOUR, T0 + HOUR) == T0 + HOUR


def test_a_step_back_that_the_store_denies_stays_one() -> None:
    seen = watch()
    seen.look(T0 - HOUR, T0)
    assert seen.look(T0 - HOUR + 9, T0 + 9, T0 + 9) is None
    assert seen.step_ms == -HOUR


def test_a_lasting_step_is_trusted() -> None:
    seen = watch()
    seen.look(T0 + YEAR, T0)
    assert seen.look(T0 + YEAR + DAY - 1, T0 + DAY - 1) is None
    assert seen.look(T0 + YEAR + DAY, T0 + DAY) == Settled("it has lasted long enough")
    assert seen.expiry_ms(T0 + YEAR + DAY, T0 + DAY) == T0 + YEAR + DAY


def test_a_clock_that_was_wrong_at_the_start_is_found_out_by_the_store() -> None:
    seen = watch()
    assert seen.look(T0 + 1000, T0 + 1000, T0 + 1000 - YEAR) == Stepped(YEAR)
    assert seen.expiry_ms(T0 + 2000, T0 + 2000) == T0 + 2000 - YEAR


def test_small_steps_add_up() -> None:
    seen = watch()
    news = [seen.look(T0 + second * 1000 + second * 20_000, T0 + second * 1000) for second in range(1, 10)]
    assert [type(each) for each in news if each is not None] == [Stepped]


@given(st.lists(st.integers(0, 1000), max_size=50), st.sampled_from([-1, 1]))
def test_slewing_is_followed_and_no_step(pauses: list[int], sign: int) -> None:
    seen, steady, wall = watch(), T0, T0
    for pause in pauses:
        steady += pause * 1000
        wall += pause * 1000 + sign * pause // 2  # 500 ppm
        assert seen.look(wall, steady) is None
    assert wall - MINUTE <= seen.expiry_ms(wall, steady) <= wall


@given(st.lists(st.tuples(st.integers(0, HOUR), st.integers(-YEAR, YEAR)), max_size=20))
def test_expiry_is_never_ahead_of_the_wall_clock(moves: list[tuple[int, int]]) -> None:
    seen, steady, step = watch(), T0, 0
    for pause, more in moves:
        steady, step = steady + pause, step + more
        seen.look(steady + step, steady)
        assert seen.expiry_ms(steady + step, steady) <= steady + step
