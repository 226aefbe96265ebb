"""Refuses calls of connections beyond a bound, and closes individual connections. gRPC for Python can do neither.

A connection is known from its first call on. At the bound, the process's own descriptors show which known connections have
closed; if none has, the call is refused. gRPC itself closes connections beyond the bound plus REFUSED_CONNECTIONS, which also
bounds connections without calls.

An aborted RPC keeps its message until its caller reads it. Shutting down the connection's socket frees all that its calls hold;
to gRPC it looks as if the caller had closed it. The socket is found among the process's descriptors by both of its addresses.

The module needs /proc. Without it, only the keepalive ends a caller that reads nothing, and gRPC's own bound is the only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Collection, Generator
from urllib.parse import unquote

from storage_tiers.errors import Busy

_DESCRIPTORS = "/proc/self/fd"
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
#: Seconds between two scans for closed connections, however many calls ask.
LOOK_S = 0.25

#: Host and port.
Address = tuple[str, int]


class Connections:
    """The connections to one port of this process; at most `most` are served."""

    def __init__(self, most: int) -> None:
        self.port = 0
        self.most = most
        #: Admitted connections by name; some may be closed already.
        self.admitted: set[str] = set()
        self._looking: asyncio.Future[set[Address] | None] | None = None
        self._looked_at = -LOOK_S
        self._closing: set[str] = set()

    async def admit(self, peer: str) -> None:
        """Admits a connection; await it before serving the first call of a peer. Raises Busy at the bound."""
        if len(self.admitted) >= self.most and not await self._forget_gone():
            return
        if len(self.admitted) >= self.most:
            raise Busy(
                f"{self.most} connections are served already, as many as tidelog.grpc.max.connections or the limit of open "
                "files allows: share a channel among your callers, or retry later"
            )
        self.admitted.add(peer)

    async def _forget_gone(self) -> bool:
        """Forgets the connections that have closed. Scans at most once per LOOK_S. Returns False if descriptors cannot be
        scanned."""
        loop = asyncio.get_running_loop()
        if self._looking is None:
            if loop.time() - self._looked_at < LOOK_S:
                return True
            self._looking = loop.run_in_executor(None, callers, self.port)
            # A callback, because the caller may be cancelled: a stale scan would then be taken for a current one.
            self._looking.add_done_callback(self._drop_closed)
        try:
            return await asyncio.shield(self._looking) is not None
        except OSError:
            return True  # no descriptor is left to scan with: assume that no connection has closed

    def _drop_closed(self, looking: asyncio.Future[set[Address] | None]) -> None:
        self._looking, self._looked_at = None, asyncio.get_running_loop().time()
        if looking.cancelled() or looking.exception() is not None:
            return
        there = looking.result()
        if there is not None:
            self.admitted = {peer for peer in self.admitted if address_of(peer) in there}

    def close(self, peer: str) -> None:
        """Starts closing the connection, in a thread: scanning many open files takes a while."""
        if peer not in self._closing:
            self._closing.add(peer)
            closing = asyncio.get_running_loop().run_in_executor(None, shut_down, peer, self.port)
            closing.add_done_callback(lambda done: self._closed(peer, done))

    def _closed(self, peer: str, done: asyncio.Future[bool]) -> None:
        self._closing.discard(peer)
        if not done.cancelled():
            done.exception()


def shut_down(peer: str, port: int) -> bool:
    """Shuts down the connection between the local `port` and `peer`, in gRPC's notation (ipv4:127.0.0.1:4711,
    ipv6:%5B::1%5D:4711). Returns False if there is none."""
    wanted = address_of(peer)
    return wanted is not None and shut_down_all({wanted}, port) > 0


def shut_down_all(wanted: Collection[Address], port: int) -> int:
    """Shuts down the connections between the local `port` and these addresses, and returns their number."""
    left = set(wanted)
    with contextlib.closing(_sockets(port)) as sockets:
        for found, address in sockets if left else ():
            if address not in left:
                continue
            with contextlib.suppress(OSError):  # closed meanwhile
                found.shutdown(socket.SHUT_RDWR)
                left.discard(address)
            if not left:
                break
    return len(wanted) - len(left)


def callers(port: int) -> set[Address] | None:
    """The remote addresses of the connections to `port` of this process; None if descriptors cannot be scanned. Raises OSError
    if no descriptor is left."""
    if not os.path.isdir(_DESCRIPTORS):
        return None
    return {address for _, address in _sockets(port)}


def host_of(peer: str) -> str:
    """The host of a peer in gRPC's notation; "" if there is none."""
    found = address_of(peer)
    return "" if found is None else found[0]


def address_of(peer: str) -> Address | None:
    """The address of a peer in gRPC's notation; None if the peer has no port."""
    host, _, number = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(number)) if number.isdigit() else None


def _sockets(port: int) -> Generator[tuple[socket.socket, Address], None, None]:
    """The connections to `port` of this process, with their remote addresses. Raises OSError if no descriptor is left."""
    try:
        names = os.listdir(_DESCRIPTORS)
    except FileNotFoundError:
        return
    for name in names:
        try:
            yield from _connection(name, port)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _NONE_LEFT:
                raise
            continue  # closed meanwhile, or it only listens


def _connection(descriptor: str, port: int) -> Generator[tuple[socket.socket, Address], None, None]:
    """Yields the descriptor's connection, if it is one to `port`."""
    if not os.readlink(f"{_DESCRIPTORS}/{descriptor}").startswith("socket:"):
        return
    # Duplicated first: the descriptor may be closed, and its number reused for another file, at any moment.
    with socket.socket(fileno=os.dup(int(descriptor))) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] != port:
            return
        host, number = found.getpeername()[:2]
        yield found, (host.removeprefix("::ffff:"), number)
