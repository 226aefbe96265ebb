"""The disk watermarks: produce runs freely below the first, slows between the two, and is refused above the second."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.broker.appending.disk import MAX_THROTTLE_S, DiskGuard, Watermarks
from storage_tiers.errors import StorageError
from storage_tiers.hot.ballast import Ballast


@pytest.fixture
def guard(tmp_path: Path) -> DiskGuard:
    return DiskGuard(str(tmp_path), Watermarks(slow_at=0.8, refuse_at=0.9))


def test_below_the_first_mark_nothing_happens(guard: DiskGuard) -> None:
    guard.judge(0.79)
    guard.admit()
    assert guard.throttle_s == 0


def test_between_the_marks_answers_are_held_back_the_longer_the_fuller(guard: DiskGuard) -> None:
    guard.judge(0.85)
    guard.admit()
    assert guard.throttle_s == pytest.approx(MAX_THROTTLE_S / 2)


def test_above_the_second_mark_produce_is_refused_until_space_returns(guard: DiskGuard) -> None:
    guard.judge(0.9)
    with pytest.raises(StorageError, match="90% full"):
        guard.admit()
    guard.judge(0.5)
    guard.admit()


def test_coordinators_are_refused_once_their_reserve_is_used(guard: DiskGuard) -> None:
    guard.judge(0.949)
    guard.admit_marker()
    assert guard.no_room is None and guard.throttle_s == 0
    guard.judge(0.95)
    with pytest.raises(StorageError, match=r"reserve is used from 95.0%"):
        guard.admit_marker()
    guard.judge(0.949)
    guard.admit_marker()


def test_the_space_of_a_released_ballast_is_not_for_coordinators(tmp_path: Path) -> None:
    ballast = Ballast(str(tmp_path))
    guard = DiskGuard(str(tmp_path), Watermarks(), ballast)
    ballast.release()
    with pytest.raises(StorageError, match="ballast is released"):
        guard.admit_marker()
    guard.judge(0.5)
    assert guard.no_room is not None
    ballast.make()
    guard.judge(0.5)
    assert guard.no_room is None


def test_the_disk_guard_looks_at_the_real_file_system(guard: DiskGuard) -> None:
    guard.look()
    assert 0 < guard.used <= 1


def test_marks_must_be_ordered() -> None:
    with pytest.raises(ValueError, match="slow <= refuse"):
        Watermarks(slow_at=0.9, refuse_at=0.8)
