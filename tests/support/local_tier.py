"""A tier process within this process: the same server over the same socket pair, without a second interpreter."""

from __future__ import annotations

import asyncio
import socket

from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.launcher import Launched
from storage_tiers.cold.process.server import TierServer
from storage_tiers.cold.process.shared_work import OpenStore


class LocalHandle:
    def __init__(self, server: TierServer, task: asyncio.Task[None]) -> None:
        self._server = server
        self._task = task

    @property
    def process_id(self) -> int | None:
        return None

    def kill(self) -> None:
        self._task.cancel()

    async def ended(self, grace_s: float) -> None:
        self._server.stop()
        _, unfinished = await asyncio.wait((self._task,), timeout=grace_s)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class LocalLauncher:
    """Each launch serves one socket until it ends. `servers` are all those started so far; the last one is serving."""

    def __init__(self, open_store: OpenStore, clock: Clock, rng: Rng) -> None:
        self._open_store = open_store
        self._clock = clock
        self._rng = rng
        self.servers: list[TierServer] = []

    async def launch(self) -> Launched:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        server = TierServer(self._open_store, self._clock, self._rng)
        self.servers.append(server)
        return Launched(ours, LocalHandle(server, asyncio.create_task(server.run(theirs))))
