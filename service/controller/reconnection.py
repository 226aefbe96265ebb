"""The connection to a controller, and pauses between calls that fail while it is lost.

A back-off alone would leave a controller unasked for up to the longest delay after it has started again, and all commands of
its brokers wait meanwhile. The channel itself connects often and cheaply, so a pause ends as soon as the channel is connected.

Invariants: one watch of the channel serves all pauses. A pause lasts at least LEAST_S or its whole delay, so a controller that
accepts connections and fails each call is not called in a busy loop. While the channel is connected, a pause lasts its whole
delay.

Not thread-safe: call it on the event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from grpc_api.channel import open_channel

#: The shortest pause in seconds.
LEAST_S = 0.05
#: Milliseconds between two attempts to connect, gRPC's minimum. A refused attempt costs a broker and its controller little.
ATTEMPT_MS = 100
_OPTIONS = (("grpc.initial_reconnect_backoff_ms", ATTEMPT_MS), ("grpc.max_reconnect_backoff_ms", ATTEMPT_MS))


def open_controller_channel(address: str) -> Any:
    """A channel to the controller at `address` (HOST:PORT), which connects again soon after the controller does."""
    return open_channel(address, _OPTIONS)


class Reconnection:
    """Pauses between the calls of a channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._watch: asyncio.Task[None] | None = None

    async def pause(self, delay_s: float) -> None:
        """Waits for `delay_s` seconds. If the channel is not connected now, returns early once it is."""
        if self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            await asyncio.sleep(delay_s)
            return
        least_s = min(delay_s, LEAST_S)
        await asyncio.sleep(least_s)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._connected(), name="reconnection")
        await asyncio.wait({self._watch}, timeout=delay_s - least_s)

    async def _connected(self) -> None:
        """Returns once the channel is connected or closed."""
        with suppress(grpc.aio.UsageError, RuntimeError):
            await self._channel.channel_ready()
