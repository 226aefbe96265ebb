"""Measures one broker or a cluster under load from many connections to many partitions. The rows include the processor time of
the brokers and of the client itself.

The loop is closed: each connection has a fixed number of requests in flight, and goes to the leader of its partition. With
`together`, each client has one connection to each leader, whose requests contain all partitions of that leader. The error
codes of every response are checked.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks import load
from benchmarks.brokers import Broker

PARTITIONS = 16


@dataclass(frozen=True, slots=True)
class Fleet:
    """With `together`, each request has a batch for every partition of its leader. Otherwise each connection has one
    partition."""

    name: str
    connections: int
    records: int
    value_bytes: int
    in_flight: int
    together: bool = False
    acks: int = 1
    partitions: int = PARTITIONS


FLEETS = (
    Fleet("16 connections x own partition, 16 KiB", 16, 16, 1000, 3),
    Fleet("16 connections x own partition, 64 KiB", 16, 64, 1000, 2),
    Fleet("4 connections, requests of 16 partitions x 4 KiB", 4, 4, 1000, 3, together=True),
    Fleet("4 connections, requests of 16 partitions x 200 B", 4, 1, 120, 3, together=True),
    Fleet("16 connections, acks=all, 1 KiB", 16, 1, 1000, 3, acks=-1),
)


@dataclass(slots=True)
class _Client:
    connection: load.Connection
    request: bytes
    partitions: int
    sent: deque[float] = field(default_factory=deque)
    unread: bytearray = field(default_factory=bytearray)

    def send(self, now: float) -> None:
        self.sent.append(now)
        self.connection.send(self.request)


def one_round(broker: Broker, tag: str, seconds: float, only: str) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker. A value is None if it is unknown for that broker."""
    for fleet in FLEETS:
        if only not in fleet.name:
            continue
        with load.topic_for(broker.address, f"fleet-{tag}-{FLEETS.index(fleet)}", fleet.partitions) as topic:
            batch = load.record_batch(fleet.records, fleet.value_bytes)
            before, own = broker.processor_seconds(), time.process_time()
            rows, elapsed, p99 = _closed_loop(_clients(broker.address, topic, batch, fleet), topic, fleet, seconds)
            own, after = time.process_time() - own, broker.processor_seconds()
        written = rows * len(batch)
        yield fleet.name, "MB/s", written / elapsed / 1e6
        yield f"{fleet.name}: p99", "ms", p99
        spent = None if before is None or after is None else (after - before) / (written / 1e9)
        yield f"{fleet.name}: broker processor", "s/GB", spent
        yield f"{fleet.name}: client processor", "s/GB", own / (written / 1e9)


def _clients(address: str, topic: str, batch: bytes, fleet: Fleet) -> list[_Client]:
    """Connects the clients; returns them once each has had one request accepted."""
    leaders, made = load.leaders(address, topic), list[_Client]()
    for number in range(fleet.connections):
        wanted: dict[str, list[int]] = {}
        for partition in range(fleet.partitions) if fleet.together else (number % fleet.partitions,):
            wanted.setdefault(leaders[partition], []).append(partition)
        for leader, partitions in wanted.items():
            request = load.produce_frame(topic, batch, fleet.acks, partitions)
            client = _Client(load.Connection(leader), request, len(partitions))
            load.accepted(client.connection, request, topic, len(partitions))
            made.append(client)
    return made


def _closed_loop(made: list[_Client], topic: str, fleet: Fleet, seconds: float) -> tuple[int, float, float]:
    """Loads the brokers for `seconds`. Returns (batches written, elapsed seconds, p99 in ms)."""
    poll, taken, rows = select.epoll(), list[float](), 0
    clients = {client.connection.socket.fileno(): client for client in made}
    for fd in clients:
        poll.register(fd, select.EPOLLIN)
    began = time.perf_counter()
    for client in made:
        for _ in range(fleet.in_flight):
            client.send(time.perf_counter())
    under_way = len(made) * fleet.in_flight
    while under_way:
        for fd, _ in poll.poll():
            client = clients[fd]
            piece = client.connection.socket.recv(1 << 16)
            if not piece:
                raise load.LoadFailed("a broker closed a connection")
            client.unread += piece
            for answer in _answers(client.unread):
                load.check_produced(answer, topic, client.partitions)
                now = time.perf_counter()
                taken.append(now - client.sent.popleft())
                rows += client.partitions
                if now < began + seconds:
                    client.send(now)
                else:
                    under_way -= 1
    elapsed = time.perf_counter() - began
    for client in made:
        client.connection.close()
    taken.sort()
    return rows, elapsed, taken[int(len(taken) * 0.99)] * 1e3


def _answers(unread: bytearray) -> Iterator[bytes]:
    """Removes the whole responses at the front of `unread`; yields each without its length prefix."""
    while len(unread) >= 4:
        (size,) = struct.unpack_from(">i", unread)
        if len(unread) < 4 + size:
            return
        yield bytes(unread[4 : 4 + size])
        del unread[: 4 + size]
