"""Three brokers of one controller in this process, each behind its gRPC server, and a client that knows one address.

Broker 1 has the controller; the client knows the address of broker 2. The brokers have no object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from grpc_api.contract.log import Appended, OffsetQuery, OffsetSpec
from grpc_api.remote import RemoteCore
from grpc_api.servicers.server import serve_grpc
from service.build.ground import Host, Listening
from service.lifecycle.readiness import Readiness
from service.lifecycle.supervisor import supervised
from service.node import Node
from service.serve.rounds import rounds
from service.serve.servers import serve_brokers
from service.settings.derived import listeners_of
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import LogError, NotLeader, UnknownTopicOrPartition
from storage_tiers.files import OsFiles
from storage_tiers.types import TopicPartition
from tests.service.broker.support import PATIENCE_S, Driven
from tests.support.local_tier import LocalLauncher
from tests.support.ports import free_port

BROKERS = (1, 2, 3)


class RoutedDriven(Driven):
    """Waits, as clients do, for leaders that learn of a new partition after the answer to its creation."""

    async def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        await super().create(topic, partitions, configs)
        asked = [OffsetQuery(TopicPartition(topic, each), OffsetSpec.LATEST) for each in range(partitions)]
        async with asyncio.timeout(PATIENCE_S):
            while any(isinstance(each, LogError) for each in await self.log.list_offsets(asked)):
                await asyncio.sleep(0.005)

    async def append_batch(self, topic: str, data: bytes, *, partition: int = 0) -> Appended:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await super().append_batch(topic, data, partition=partition)
                except (UnknownTopicOrPartition, NotLeader):
                    if self.core.topics.leader(TopicPartition(topic, partition))[0] < 0:
                        raise
                await asyncio.sleep(0.005)


@asynccontextmanager
async def three_brokers(directory: Path, configs: Mapping[str, str]) -> AsyncIterator[RoutedDriven]:
    controller = f"127.0.0.1:{free_port()}"
    addresses = {broker: f"127.0.0.1:{free_port()}" for broker in BROKERS}
    async with AsyncExitStack() as stack:
        for broker, address in addresses.items():
            node = await _opened(directory / str(broker), broker, controller, address, configs)
            await stack.enter_async_context(_serving(node, address))
        connected = RemoteCore.connect(addresses[2], clock=SystemClock(), rng=SystemRng())
        core = await stack.enter_async_context(connected)
        async with asyncio.timeout(PATIENCE_S):
            while len(core.topics.cluster().brokers) < len(BROKERS):
                await asyncio.sleep(0.005)
        yield RoutedDriven(core)


async def _no_store(_: StoreLocation) -> ObjectStore:
    raise AssertionError("these brokers have no store")


async def _opened(directory: Path, broker: int, controller: str, grpc: str, configs: Mapping[str, str]) -> Node:
    settings = NodeSettings(
        data_dir=directory,
        store="none",
        node_id=broker,
        broker=configs,
        controller=None if broker == 1 else controller,
        controller_listener=controller if broker == 1 else None,
    )
    clock, rng = SystemClock(), SystemRng()
    host = Host(OsFiles(), clock, rng, LocalLauncher(_no_store, clock, rng))
    return await Node.open(settings, Readiness(), asyncio.Event(), host, Listening(listeners_of(settings), grpc))


@asynccontextmanager
async def _serving(node: Node, address: str) -> AsyncIterator[None]:
    host, _, port = address.rpartition(":")
    try:
        async with serve_brokers(node), supervised(rounds(node), node.ground.host.clock):
            server = await serve_grpc(node.broker.core, host, int(port))
            member = asyncio.get_running_loop().create_task(node.run_membership())
            try:
                yield
            finally:
                await server.stop(0)
                member.cancel()
                await asyncio.gather(member, return_exceptions=True)
    finally:
        await node.close()
