"""A channel to a node, and the conversion of its failed calls to LogErrors."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.limits import CLIENT_OPTIONS, Options
from grpc_api.messages.errors import error_of_call
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import Busy, LeaderNotAvailable, RequestTimedOut

#: The timeout in seconds of calls that set none of their own.
CALL_TIMEOUT_S = 60.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NodeChannel:
    """An open channel to the node at `address` (HOST:PORT, or several with commas between), with the clock and the random
    numbers for pauses between calls."""

    channel: Any
    address: str
    clock: Clock
    rng: Rng


def open_channel(address: str, options: Options = ()) -> Any:
    """A channel on the running event loop. It connects at its first call. `address` is HOST:PORT, or a target of gRPC;
    `options` replace those of CLIENT_OPTIONS."""
    return grpc.aio.insecure_channel(address, options=tuple({**dict(CLIENT_OPTIONS), **dict(options)}.items()))


async def answered(call: Awaitable[Answer], address: str) -> Answer:
    """The call's answer. A failed call raises a LogError."""
    try:
        return await call
    except grpc.aio.AioRpcError as failure:
        raise error_of_call(failure, address) from None


async def decided(call: Awaitable[Answer], address: str) -> Answer:
    """As `answered`, for calls to a coordinator. Converts LeaderNotAvailable, RequestTimedOut and Busy to
    CoordinatorNotAvailable, because group members and producers do not handle the first three."""
    try:
        return await answered(call, address)
    except (LeaderNotAvailable, RequestTimedOut, Busy) as error:
        raise CoordinatorNotAvailable(str(error)) from None
