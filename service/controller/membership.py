"""A broker's membership of a cluster whose controller is in another process, from joining to leaving.

    open -> joined -> register -> run ... -> leave -> close         `applied.noting` meanwhile

`joined` waits for the controller without a limit, since a broker without metadata can serve nothing. `run` tells the controller
that the broker is ready, and ends only with an error that must end the broker: a newer start has its id, or the metadata cannot
be applied. `leave` gives up the broker's leaderships before the broker closes its logs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress

from grpc_api.channel import NodeChannel
from service.controller.applied_metadata import AppliedMetadata, read_position
from service.controller.client import RemoteController
from service.controller.follower import MetadataFollower
from service.controller.reconnection import open_controller_channel
from service.metadata.commands import RegisterBroker
from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import LogError
from storage_tiers.files import Files
from storage_tiers.hot.data_dir import META_PROPERTIES

log = logging.getLogger(__name__)

#: Seconds that a stopping broker waits for its controller to move its leaderships.
LEAVE_S = 5.0


class ClusterMembership:
    """`metadata` follows the controller at `address`; `commands` sends it this broker's commands."""

    def __init__(
        self, address: str, broker_id: int, cluster_id: str, directory: str, *, files: Files, clock: Clock, rng: Rng
    ) -> None:
        """`cluster_id` is that of the broker's data directory, empty if it is new. Must be called on the loop, because it
        starts the task that follows the metadata."""
        self._channel = NodeChannel(open_controller_channel(address), address, clock, rng)
        self._cluster_id = cluster_id
        is_unnoted = bool(cluster_id) and read_position(directory) is None
        path = os.path.join(directory, META_PROPERTIES)
        self.metadata = MetadataFollower(self._channel, cluster_id, path, is_unnoted=is_unnoted)
        self.applied = AppliedMetadata(directory, files, self.metadata, address)
        self.commands = RemoteController(self._channel, self.metadata, broker_id)
        self._following = asyncio.get_running_loop().create_task(self.metadata.run(), name="metadata")
        self._beating: asyncio.Task[None] | None = None

    async def joined(self) -> None:
        """Returns once this broker has the controller's current metadata. Raises WrongCluster if the directory belongs to
        another cluster, and FencedWriter if it has applied newer metadata."""
        events.info(log, "controller.asked", address=self._channel.address)
        reached = asyncio.ensure_future(self.metadata.catch_up())
        await asyncio.wait({reached, self._following}, return_when=asyncio.FIRST_COMPLETED)
        if not reached.done():
            reached.cancel()
            self._following.result()  # raises the task's error
        await reached
        self.applied.check()

    async def register(self, command: RegisterBroker) -> None:
        """Returns once this broker's image has its registration. Raises DuplicateBroker, InvalidRequest or WrongCluster."""
        await self.commands.register(command, self._cluster_id)

    async def run(self) -> None:
        """Sends heartbeats until it is cancelled. Raises the LogError that ends this broker."""
        beating = self._beating = asyncio.get_running_loop().create_task(self.commands.run(), name="heartbeats")
        try:
            done, _ = await asyncio.wait({beating, self._following}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            beating.cancel()

    async def leave(self) -> None:
        """Gives up leaderships. Does nothing unless `run` is running. A controller that does not answer notices the closed
        connection later."""
        if self._beating is not None and not self._beating.done():
            await self.commands.stop(LEAVE_S)

    async def close(self) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError, LogError):
            await self._following
        await self._channel.channel.close()
