"""A node in this process with its gRPC server on its own port, and an SDK client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.sdk.client import Client
from tests.grpc_api.support import Served, served
from tests.support.clock import SeededRng


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "data") as started:
        yield started


@pytest.fixture
async def client(node: Served) -> AsyncIterator[Client]:
    """Its random choices are seeded: a record without a key goes to the same partition in each run."""
    async with Client.connect(node.address, rng=SeededRng(1)) as connected:
        yield connected
