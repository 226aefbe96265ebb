"""Keeps room for brokers among the connections of the controller's listener.

gRPC accepts connections up to a bound and then closes each further one, so callers that stay silent could keep every broker
out. Above MAX_CONNECTIONS, connections without a broker are closed, the oldest first; a broker that is about to join may be
among them, and connects again. A connection has a broker from its first heartbeat until another connection carries a heartbeat
of the same broker.

Without /proc no connection is closed. A broker may find no room while a caller opens hundreds of connections a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from grpc_api.servicers.connections import Address, address_of, callers, shut_down_all
from service.metadata.registrations import MAX_BROKERS

#: The number of connections that are left open however silent they are, and the number that gRPC accepts.
MAX_CONNECTIONS, MAX_ACCEPTED = 2 * MAX_BROKERS, 512
#: Seconds between two looks at the connections.
LOOK_S = 1.0


class Room:
    """The connections to one port of this process."""

    def __init__(self) -> None:
        self._beating: dict[int, Address] = {}
        #: The connections at the last look, the oldest first.
        self._seen: dict[Address, None] = {}

    def beat(self, broker_id: int, peer: str) -> None:
        """Called for each heartbeat of a registered broker; `peer` is its connection in gRPC's notation."""
        at = address_of(peer)
        if at is not None:
            self._beating[broker_id] = at

    def leaving(self, here: Iterable[Address]) -> set[Address]:
        """Returns the connections to close among those that are open now."""
        open_now = set(here)
        for gone in self._seen.keys() - open_now:
            del self._seen[gone]
        self._seen.update(dict.fromkeys(open_now))
        self._beating = {broker: each for broker, each in self._beating.items() if each in open_now}
        brokers = set(self._beating.values())
        surplus = len(open_now) - MAX_CONNECTIONS
        silent = (each for each in self._seen if each not in brokers)
        return {each for each, _ in zip(silent, range(surplus), strict=False)}

    async def keep(self, port: int) -> None:
        """Closes surplus connections to that port until it is cancelled."""
        run = asyncio.get_running_loop().run_in_executor
        while True:
            if await run(None, most_open, port) > MAX_CONNECTIONS:
                here = await run(None, callers, port)
                leaving = self.leaving(here or ())
                await run(None, shut_down_all, leaving, port)
            await asyncio.sleep(LOOK_S)


def most_open(port: int) -> int:
    """Returns an upper bound of the number of connections to that port. This is much cheaper than a look at each of the
    process's descriptors, of which there may be ten thousand."""
    wanted, found = b":%04X " % port, 0
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            found += Path("/proc/self/net", name).read_bytes().count(wanted)
    return found
