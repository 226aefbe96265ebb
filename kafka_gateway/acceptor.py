"""Lets connections in, as many as the configs allow; those beyond wait in the kernel's queue, or are closed at once.

Invariant: while nobody may come in, the epoll does not watch the listening socket, so that waiting costs nothing. It is
watched again when a connection leaves, when the rate allows, or at the server's next sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

from kafka_gateway import server_events
from kafka_gateway.admission import Admission, ConnectionLimits

#: Connections accepted in one turn.
ACCEPTS_A_TURN = 64


class Acceptor:
    """`welcome` is given each connection that is let in, and tells of its end by `leave`."""

    def __init__(
        self, epoll: select.epoll, limits: ConnectionLimits, welcome: Callable[[socket.socket, tuple[str, int]], None]
    ) -> None:
        self._epoll = epoll
        self._admission = Admission(limits)
        self._welcome = welcome
        self._listener: socket.socket | None = None
        self._watched = False

    def start(self, listener: socket.socket) -> int:
        """Takes the socket over; its port."""
        listener.setblocking(False)
        self._listener = listener
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._watched = True
        port: int = listener.getsockname()[1]
        return port

    def stop(self) -> None:
        if self._listener is not None:
            self._epoll.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def limit(self, limits: ConnectionLimits) -> None:
        """Binds whoever connects from now on."""
        self._admission.limits = limits
        self.resume()

    def leave(self, address: str) -> None:
        """A connection from there has closed."""
        self._admission.leave(address)
        self.resume()

    def accept(self, now: float) -> None:
        """Those who wait, as far as they may come in."""
        if self._listener is None:
            return
        for _ in range(ACCEPTS_A_TURN):
            wait_s = self._admission.wait_s(now)
            if self._admission.is_full or wait_s:
                bound = "max.connection.creation.rate" if wait_s else self._admission.limits.total_by
                server_events.held_back(bound, self._admission.inside)
                self._pause(wait_s)
                return
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                server_events.not_accepted(error)
                self._pause()
                return
            if not self._admission.enter(address[0]):
                server_events.not_let_in(address, "max.connections.per.ip")
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._welcome(sock, address)

    def resume(self) -> None:
        if not self._watched and self._listener is not None:
            self._watched = True
            self._epoll.modify(self._listener.fileno(), select.EPOLLIN)

    def _pause(self, wait_s: float = 0) -> None:
        """For that long, or else until a connection closes, or the next sweep."""
        if self._watched and self._listener is not None:
            self._watched = False
            self._epoll.modify(self._listener.fileno(), 0)
            if wait_s:
                asyncio.get_running_loop().call_later(wait_s, self.resume)
