"""A controller on loopback, and brokers that follow it, without any partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from grpc_api.channel import NodeChannel
from grpc_api.contract.topics import Endpoint
from service.configs.resolve import Resolver
from service.controller.client import RemoteController
from service.controller.contacts import Contacts
from service.controller.follower import MetadataFollower
from service.controller.reconnection import open_controller_channel
from service.controller.server import ControllerService, serving
from service.metadata.commands import FoundCluster, RegisterBroker
from service.metadata.controller import Controller
from service.metadata.log import MetadataLog
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.files import OsFiles
from tests.support.clock import SeededRng

CLUSTER = "a-cluster"
SESSION_S = 5.0


@dataclass
class Controlling:
    """A running controller."""

    metadata: MetadataLog
    controller: Controller
    service: ControllerService
    contacts: Contacts
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def controlling(
    path: Path, port: int = 0, session_s: float = SESSION_S, *, local: int = -1
) -> AsyncIterator[Controlling]:
    path.mkdir(exist_ok=True)
    metadata = MetadataLog.open(str(path), OsFiles(), SystemRng())
    controller = Controller(metadata, Resolver({}, node_id=3000, has_store=False))
    await controller.execute(FoundCluster(CLUSTER))
    contacts = Contacts(session_s)
    service = ControllerService(metadata, controller, contacts, SystemClock(), local=local)
    try:
        async with serving(service, "127.0.0.1", port) as bound:
            yield Controlling(metadata, controller, service, contacts, bound)
    finally:
        await metadata.close()


@dataclass
class Following:
    """A registered broker. `beating` sends its heartbeats."""

    follower: MetadataFollower
    remote: RemoteController
    beating: asyncio.Task[None]


def registration_of(broker_id: int, start: bytes, disk: bytes = b"") -> RegisterBroker:
    at = (Endpoint("PLAINTEXT", "127.0.0.1", 9000 + broker_id),)
    return RegisterBroker(broker_id, disk or b"disk%d" % broker_id, at, None, start, fenced=True)


@asynccontextmanager
async def following(
    address: str, broker_id: int, *, start: bytes = b"start", disk: bytes = b"", cluster_id: str = CLUSTER
) -> AsyncIterator[Following]:
    async with AsyncExitStack() as stack:
        channel = NodeChannel(open_controller_channel(address), address, SystemClock(), SeededRng(broker_id))
        stack.push_async_callback(channel.channel.close)
        follower = MetadataFollower(channel, cluster_id)
        stack.push_async_callback(_ended, asyncio.create_task(follower.run()))
        remote = RemoteController(channel, follower, broker_id)
        await remote.register(registration_of(broker_id, start, disk), cluster_id)
        beating = asyncio.create_task(remote.run())
        stack.push_async_callback(_ended, beating)
        yield Following(follower, remote, beating)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
