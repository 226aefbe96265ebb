"""Coordinators over a real partition: `held` commits when a test says so, `coordinator` at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.coordination.held import HELD, Held, coordinated


@pytest.fixture
async def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    async with coordinated(tmp_path / "data", monkeypatch, HELD) as started:
        yield started


@pytest.fixture
async def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    async with coordinated(tmp_path / "data", monkeypatch) as started:
        yield started
