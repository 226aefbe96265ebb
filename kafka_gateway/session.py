"""The server's state of one client connection."""

from __future__ import annotations

import asyncio
import select
import socket
from dataclasses import dataclass
from typing import Any

from kafka_gateway.client import ConnectedClient
from kafka_gateway.connection import Connection, PendingReply

#: The watched events while requests may be received.
READ = select.EPOLLIN | select.EPOLLRDHUP


class GatewaySession:
    """A connection and its socket. `events` are watched by `epoll`, or by the event loop if `by_loop`. `last_active` is in
    seconds. `ending` is the reason to close when all answers are sent, or None."""

    __slots__ = (
        "address",
        "by_loop",
        "client",
        "closed",
        "connection",
        "ending",
        "epoll",
        "events",
        "fd",
        "futures",
        "held_bytes",
        "in_thread",
        "is_sending",
        "last_active",
        "leaving",
        "resuming",
        "socket",
        "working_bytes",
    )

    def __init__(
        self,
        sock: socket.socket,
        address: tuple[str, int],
        listener: str,
        connection: Connection,
        epoll: select.epoll,
        now: float,
    ) -> None:
        self.socket = sock
        self.address = address
        self.client = ConnectedClient(*address, listener)
        self.fd = sock.fileno()
        self.connection = connection
        self.epoll = epoll
        self.events = READ
        self.last_active = now
        #: The bytes that the request memory pool counts for this connection.
        self.held_bytes = 0
        #: Memory of the request that a task works on, or that waits for its answer.
        self.working_bytes = 0
        #: By pending reply: the API key of its request, and the future that it waits for.
        self.futures: dict[PendingReply, tuple[int, asyncio.Future[Any]]] = {}
        self.by_loop = False
        #: Whether the client's disconnect is queued.
        self.leaving = False
        #: Whether this session is queued because received requests could not start yet.
        self.resuming = False
        #: Whether a thread reads or sends its next bytes. The event loop sends nothing meanwhile.
        self.in_thread = False
        #: Whether the last send left answers unsent. The rest is no small answer, even if it is the end of a large one.
        self.is_sending = False
        self.ending: str | None = None
        self.closed = False

    @property
    def is_busy(self) -> bool:
        """Whether answers are unfinished or unsent."""
        return bool(self.connection.waiting or self.connection.out)


@dataclass(slots=True)
class GatewayCounters:
    """Totals since the start, for a metrics collector. `failures` counts defects; `busy_s` is the time spent in turns."""

    connections_accepted: int = 0
    connections_closed: int = 0
    requests: int = 0
    received_bytes: int = 0
    failures: int = 0
    busy_s: float = 0.0
