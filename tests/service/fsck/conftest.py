"""A store that uses every feature of the formats, built once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage_tiers.cold.full_store import FullStore, build


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> FullStore:
    return asyncio.run(build(Path(tmp_path_factory.mktemp("full"))))
