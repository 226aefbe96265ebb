"""What the server holds for one client."""

from __future__ import annotations

import asyncio
import select
import socket
from dataclasses import dataclass
from typing import Any

from kafka_gateway.client import ConnectedClient
from kafka_gateway.connection import Connection, PendingReply

#: What the epoll watches while requests are wanted.
READ = select.EPOLLIN | select.EPOLLRDHUP


class GatewaySession:
    """A connection and its socket. `events` is what is watched, by the epoll or `by_loop`; `ending` says why it closes once
    all is sent."""

    __slots__ = (
        "address",
        "by_loop",
        "client",
        "closed",
        "connection",
        "ending",
        "events",
        "fd",
        "futures",
        "held_bytes",
        "in_thread",
        "last_active",
        "leaving",
        "socket",
        "working_bytes",
    )

    def __init__(
        self, sock: socket.socket, address: tuple[str, int], listener: str, connection: Connection, now: float
    ) -> None:
        self.socket = sock
        self.address = address
        self.client = ConnectedClient(*address, listener)
        self.fd = sock.fileno()
        self.connection = connection
        self.events = READ
        self.last_active = now
        self.held_bytes = 0
        #: Of a request that a task works on.
        self.working_bytes = 0
        #: By pending reply: the API of its request, and what it waits for.
        self.futures: dict[PendingReply, tuple[int, asyncio.Future[Any]]] = {}
        self.by_loop = False
        #: Whether the server knows that the client has gone, and has yet to act.
        self.leaving = False
        #: What it sends next is read or sent by a thread; nobody else sends on it meanwhile.
        self.in_thread = False
        self.ending: str | None = None
        self.closed = False

    @property
    def is_busy(self) -> bool:
        """Whether answers are still to be made or sent."""
        return bool(self.connection.waiting or self.connection.out)


@dataclass(slots=True)
class GatewayCounters:
    """Plain numbers for a metrics collector to read: `busy_s` are seconds of the gateway's turns."""

    connections_accepted: int = 0
    connections_closed: int = 0
    requests: int = 0
    received_bytes: int = 0
    failures: int = 0
    busy_s: float = 0.0
