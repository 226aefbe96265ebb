"""The implementations of the core's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from grpc_api.remote import RemoteCore
from grpc_api.servicers.server import serve_grpc
from storage_tiers.clock import SystemClock, SystemRng
from tests.conformance.cluster import three_brokers
from tests.kafka_gateway.memory_core import MemoryCore
from tests.service.broker.support import Driven, Running, running

#: Groups do not wait for more members, and the coordinators' topics are small.
AT_ONCE = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


@asynccontextmanager
async def serving(how: str, directory: Path) -> AsyncIterator[Running]:
    async with running(directory / "data", broker=AT_ONCE) as started:
        if how == "in one process":
            yield started
            return
        server = await serve_grpc(started.core, "127.0.0.1", 0)
        try:
            async with RemoteCore.connect(f"127.0.0.1:{server.port}", clock=SystemClock(), rng=SystemRng()) as core:
                started.core, started.log = core, core.log
                yield started
        finally:
            await server.stop(0)


@pytest.fixture(params=["in one process", "over a channel"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(request.param, tmp_path) as started:
        yield started


@pytest.fixture(params=["in one process", "over a channel", "over three brokers", "in memory"])
async def any_core(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driven]:
    if request.param == "over three brokers":
        async with three_brokers(tmp_path, AT_ONCE) as routed:
            yield routed
        return
    if request.param != "in memory":
        async with serving(request.param, tmp_path) as started:
            yield started
        return
    core = MemoryCore(str(tmp_path))
    yield Driven(core)
    core.close()
