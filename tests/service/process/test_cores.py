"""The number of processors that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.process.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("150000 100000", 2), ("20000 100000", 1), ("9900000 100000", 8), ("", 8), ("nonsense x", 8)],
)
def test_a_quota_bounds_the_cores(quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    path = tmp_path / "cpu.max"
    path.write_text(quota)
    assert usable_cores(str(path)) == cores


def test_a_system_without_control_groups_has_its_cores() -> None:
    assert usable_cores("/missing/cpu.max") == len(os.sched_getaffinity(0))
