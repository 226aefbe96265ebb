"""A tier process with a listener, in the test's own process, and sessions whose frames the test writes and reads."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from storage_tiers.clock import SystemClock
from storage_tiers.cold.process.protocol import Configure, encode
from storage_tiers.cold.process.server import TierServer
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.shared_launcher import SharedLauncher
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.session_listener import make_listener
from tests.storage_tiers.cold.support import EagerClock
from tests.storage_tiers.tier.support import MEMORY, PATIENT
from tests.support.clock import SeededRng
from tests.support.faulty_store import FaultyStore


class Counting(FaultyStore):
    """A store that counts how often it is closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


#: Seconds after which a test in this folder fails.
PATIENCE_S = 120.0


class House:
    """A listener, and on request the process that reads it, in this process's event loop."""

    def __init__(self) -> None:
        self.inside, outside = make_listener()
        self.launcher = SharedLauncher(outside.detach())
        self.store = Counting(MemoryStore(SystemClock()))
        self.opened = 0
        self.process: asyncio.Task[None] | None = None

    async def open_store(self, _: StoreLocation) -> ObjectStore:
        self.opened += 1
        await asyncio.sleep(0.01)
        return self.store

    def start(self) -> None:
        self.server = TierServer(self.open_store, EagerClock(), SeededRng(5))
        self.process = asyncio.create_task(self._run(self.server))

    async def _run(self, server: TierServer) -> None:
        """Runs the process once a broker has requested a session, as a supervisor does."""
        requested = (
            select.poll()
        )  # select(2) refuses descriptors above 1023, which tests of this process may have taken
        requested.register(self.inside, select.POLLIN)
        while not requested.poll(0):
            await asyncio.sleep(0.002)
        await server.run_listener(self.inside)

    async def left(self) -> None:
        """Waits until the process has ended by itself."""
        assert self.process is not None
        await asyncio.wait_for(self.process, 60)


@asynccontextmanager
async def house() -> AsyncIterator[House]:
    made = House()
    try:
        async with asyncio.timeout(PATIENCE_S):  # sessions of a failed process would wait forever
            yield made
    finally:
        if made.process is not None:
            made.process.cancel()
            await asyncio.gather(made.process, return_exceptions=True)
        made.inside.close()


class Raw:
    """A session whose frames the test writes and reads."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.sent = 0

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        with memoryview(data) as rest:
            for start in range(0, len(data), 1 << 16):
                await loop.sock_sendall(self.sock, rest[start : start + (1 << 16)])
                self.sent += len(rest[start : start + (1 << 16)])


async def raw(at: House, directory: Path, settings: TierSettings = PATIENT) -> Raw:
    """A configured session."""
    launched = await at.launcher.launch()
    made = Raw(launched.socket)
    await made.send(encode(Configure(MEMORY, str(directory), settings)))
    return made
