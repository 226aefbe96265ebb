"""Closes a caller's connection, which gRPC for Python cannot: it has no way to cancel a call from the server's side.

An aborted RPC keeps its message until its caller reads it; a connection that is shut down frees all that its calls hold, and
gRPC takes it for one that its caller has closed. The socket is found among the process's descriptors by both of its ends.

Not promised: anything where there is no /proc. Then a caller that stands still is ended by the keepalive alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
from urllib.parse import unquote

_DESCRIPTORS = "/proc/self/fd"


class Connections:
    """Those to one port of this process."""

    def __init__(self) -> None:
        self.port = 0
        self._closing: set[str] = set()

    def close(self, peer: str) -> None:
        """Begins to end the connection, in a thread: with many open files they take a while to look through."""
        if peer not in self._closing:
            self._closing.add(peer)
            closing = asyncio.get_running_loop().run_in_executor(None, shut_down, peer, self.port)
            closing.add_done_callback(lambda done: self._closed(peer, done))

    def _closed(self, peer: str, done: asyncio.Future[bool]) -> None:
        self._closing.discard(peer)
        if not done.cancelled():
            done.exception()


def shut_down(peer: str, port: int) -> bool:
    """Ends the connection between `port` here and `peer`, as gRPC writes it (ipv4:127.0.0.1:4711, ipv6:%5B::1%5D:4711). False
    if there is none."""
    host, _, number = unquote(peer).partition(":")[2].rpartition(":")
    wanted = (host.strip("[]"), int(number)) if number.isdigit() else None
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:
        return False
    return any(_shut_down(name, wanted, port) for name in names)


def _shut_down(name: str, wanted: tuple[str, int] | None, port: int) -> bool:
    try:
        if not os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
            return False
        # A descriptor of our own: the one found may be closed, and its number given to another file, at any moment.
        with socket.socket(fileno=os.dup(int(name))) as found:
            host, number = found.getpeername()[:2]
            if (host.removeprefix("::ffff:"), number) != wanted or found.getsockname()[1] != port:
                return False
            found.shutdown(socket.SHUT_RDWR)
            return True
    except (OSError, ValueError, AttributeError):  # gone meanwhile, or no connection of the internet's
        return False
