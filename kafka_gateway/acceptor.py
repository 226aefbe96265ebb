"""Accepts connections on all listeners within the connection quotas. Connections beyond the quotas wait in the kernel's queues
or are closed.

Invariant: while the quotas allow no connection, epoll watches no listening socket, so that waiting connections cost nothing. It
watches the sockets again when a connection closes, when the rate allows one, or at the server's next sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterable

from kafka_gateway import server_events
from kafka_gateway.connection_quotas import ConnectionQuotas
from kafka_gateway.settings import ConnectionLimits

#: Connections of one listener accepted in one turn.
ACCEPTS_A_TURN = 64
#: The prefix of an IPv4 address on a socket that accepts both versions.
_MAPPED = "::ffff:"

Address = tuple[str, int]
#: Listening sockets with the names of their listeners.
NamedSockets = Iterable[tuple[str, socket.socket]]


class Acceptor:
    """`welcome(socket, client address, listener name)` takes each accepted connection. `leave` must be called when that
    connection closes."""

    def __init__(
        self,
        epoll: select.epoll,
        limits: ConnectionLimits,
        welcome: Callable[[socket.socket, Address, str], None],
    ) -> None:
        self._epoll = epoll
        self._quotas = ConnectionQuotas(limits)
        self._welcome = welcome
        #: The listening sockets and the names of their listeners, by file descriptor.
        self._listeners: dict[int, tuple[socket.socket, str]] = {}
        self._watched = False

    def start(self, listeners: NamedSockets) -> None:
        """Takes over the sockets. Other processes may accept from the same sockets."""
        for name, listener in listeners:
            listener.setblocking(False)
            self._listeners[listener.fileno()] = listener, name
            self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._watched = True

    def stop(self) -> None:
        for fd, (listener, _) in self._listeners.items():
            self._epoll.unregister(fd)
            listener.close()
        self._listeners.clear()

    def limit(self, limits: ConnectionLimits) -> None:
        """Replaces the limits. They apply to new connections only."""
        self._quotas.limits = limits
        self.resume()

    def leave(self, address: str) -> None:
        """Called when a connection from `address` has closed."""
        self._quotas.remove(address)
        self.resume()

    def accept(self, fd: int, now: float) -> None:
        """Accepts the waiting connections of the listening socket `fd` within the quotas. `now` is in seconds."""
        if fd not in self._listeners:
            return
        listener, name = self._listeners[fd]
        for _ in range(ACCEPTS_A_TURN):
            wait_s = self._quotas.wait_s(now)
            if self._quotas.is_full or wait_s:
                bound = "max.connection.creation.rate" if wait_s else self._quotas.limits.total_by
                server_events.held_back(bound, self._quotas.connections)
                self._pause(wait_s)
                return
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                server_events.not_accepted(error)
                self._pause()
                return
            address = (peer[0].removeprefix(_MAPPED), peer[1])
            if not self._quotas.add(address[0]):
                server_events.over_quota(address, "max.connections.per.ip")
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._welcome(sock, address, name)

    def resume(self) -> None:
        if not self._watched:
            self._watched = True
            for fd in self._listeners:
                self._epoll.modify(fd, select.EPOLLIN)

    def _pause(self, wait_s: float = 0) -> None:
        """Stops accepting until a connection closes or the next sweep begins. If `wait_s` is not 0, it also resumes after that
        many seconds."""
        if self._watched:
            self._watched = False
            for fd in self._listeners:
                self._epoll.modify(fd, 0)
            if wait_s:
                asyncio.get_running_loop().call_later(wait_s, self.resume)
