"""Chunk fetches slow down while clients produce and the processors are saturated."""

from __future__ import annotations

import pytest

from storage_tiers.cold.read.pace import FIRST_RATE, LEAST_RATE, PERIOD_S, QUIET_S, Pace

CHUNK = 4 << 20


class Machine:
    """Fetches chunks one by one. Above `room` bytes/s the event loop is delayed, and the delay grows with the rate."""

    def __init__(self, room: float, fastest: float = 400e6, most_waiting: float = 0.1) -> None:
        self.room = room
        self.fastest = fastest
        self.now = 100.0
        self.appended = 0
        self.waited_s = 0.0
        self.pace = Pace(lambda: self.appended, lambda: self.waited_s, lambda: most_waiting)

    def run(self, seconds: float, *, producing: bool = True) -> float:
        """Fetches for `seconds`; returns the rate in bytes/s."""
        begun, fetched = self.now, 0
        while self.now < begun + seconds:
            took = self.pace.delay(CHUNK, self.now, urgent=False) + CHUNK / self.fastest
            self.now += took
            self.appended += producing
            fetched += CHUNK
            self.waited_s += took * min(1.0, max(0.0, CHUNK / took / self.room - 1.0))
        return fetched / (self.now - begun)


def test_fetches_are_not_slowed_without_producers() -> None:
    machine = Machine(room=50e6)
    assert machine.run(10, producing=False) == pytest.approx(400e6)
    assert machine.pace.rate is None


def test_fetches_yield_to_producers_as_far_as_the_loop_waits() -> None:
    machine = Machine(room=180e6)
    machine.run(5)
    assert 150e6 < machine.run(20) < 220e6


def test_with_spare_processors_nothing_is_slowed_for_long() -> None:
    machine = Machine(room=1e12)
    machine.run(3)
    assert machine.run(10) > 0.9 * 400e6


def test_the_pace_begins_slowly_and_never_stops() -> None:
    machine = Machine(room=1.0)
    machine.appended = 1
    machine.run(PERIOD_S)
    assert machine.pace.rate == FIRST_RATE
    machine.run(20)
    assert machine.run(20) == pytest.approx(LEAST_RATE, rel=0.1)


def test_full_speed_returns_when_producers_have_gone() -> None:
    machine = Machine(room=100e6)
    machine.run(10)
    machine.run(QUIET_S + 2 * PERIOD_S, producing=False)
    assert machine.run(5, producing=False) == pytest.approx(400e6, rel=0.01)


def test_a_scan_at_full_speed_is_halved_while_records_are_produced() -> None:
    machine = Machine(room=1e12)
    machine.run(5, producing=False)
    machine.run(PERIOD_S)
    machine.run(PERIOD_S)
    assert machine.pace.rate is not None
    assert 0.5 * 400e6 <= machine.pace.rate < 0.7 * 400e6


def test_slowing_can_be_disabled() -> None:
    machine = Machine(room=1.0, most_waiting=1.0)
    assert machine.run(5) == pytest.approx(400e6)


def test_awaited_fetches_are_not_delayed_but_are_charged() -> None:
    machine = Machine(room=1.0)
    machine.run(20)
    pace, now = machine.pace, machine.now
    assert [pace.delay(CHUNK, now, urgent=True) for _ in range(100)] == [0.0] * 100
    owed = pace.delay(CHUNK, now, urgent=False)
    assert 0.9 < owed <= 1.0, "all of the debt"
    assert pace.delay(CHUNK, now + owed, urgent=False) == pytest.approx(CHUNK / LEAST_RATE, rel=0.3)
