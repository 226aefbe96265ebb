"""A core with two topics, and a caller of its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.topics import NewTopic
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.memory_core import MemoryCore


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[MemoryCore]:
    core = MemoryCore(str(tmp_path))
    await core.create([NewTopic("first", partitions=3), NewTopic("second")])
    yield core
    core.close()


@pytest.fixture
def handlers(core: MemoryCore) -> HandlerClient:
    return HandlerClient(core)
