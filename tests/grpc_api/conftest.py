"""A node in this process with its gRPC face on a port of its own, and a client of the SDK on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.sdk.client import Client
from tests.grpc_api.support import Served, served


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "data") as started:
        yield started


@pytest.fixture
async def client(node: Served) -> AsyncIterator[Client]:
    async with Client.connect(node.address) as connected:
        yield connected
