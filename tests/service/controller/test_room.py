"""Silent connections make room for brokers."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from socket import create_connection, socket

import pytest

from grpc_api.servicers.connections import Address, callers
from service.controller import room as module
from service.controller.room import MAX_ACCEPTED, MAX_CONNECTIONS, Room
from tests.service.broker.support import until
from tests.service.controller.support import controlling, following


def at(number: int) -> Address:
    return ("127.0.0.1", number)


def test_the_oldest_connections_without_heartbeats_are_closed_first() -> None:
    room = Room()
    assert room.leaving(map(at, range(MAX_CONNECTIONS))) == set()
    for broker in range(3):
        room.beat(broker, f"ipv4:127.0.0.1:{broker}")
    assert room.leaving(map(at, range(MAX_CONNECTIONS + 10))) <= {at(each) for each in range(3, MAX_CONNECTIONS)}
    assert len(room.leaving(map(at, range(MAX_CONNECTIONS + 10)))) == 10
    room.beat(0, "ipv4:127.0.0.1:5")
    leaving = room.leaving(map(at, range(2 * MAX_CONNECTIONS + 10)))
    assert at(0) in leaving, "a broker has one connection"
    assert leaving.isdisjoint({at(1), at(2), at(5)})


def test_connections_with_heartbeats_stay() -> None:
    room = Room()
    for broker in range(MAX_CONNECTIONS + 5):
        room.beat(broker, f"ipv4:127.0.0.1:{broker}")
    assert room.leaving(map(at, range(MAX_CONNECTIONS + 5))) == set()


async def test_a_broker_registers_beside_silent_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC accepts no connection beyond a bound, and a silent connection costs its caller nothing."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await until(lambda: not one.remote.fenced)
        silent: list[socket] = []
        try:
            while len(silent) < MAX_ACCEPTED + 100:
                silent += [await asyncio.to_thread(create_connection, ("127.0.0.1", controller.port), 5.0)]
            await until(lambda: len(callers(controller.port) or ()) <= MAX_CONNECTIONS, seconds=20.0)
            with closing(create_connection(("127.0.0.1", controller.port), 5.0)) as next_one:
                next_one.settimeout(5.0)
                assert await asyncio.to_thread(next_one.recv, 9), "the server sends its HTTP/2 settings"
            assert not one.beating.done()
            await until(lambda: not one.remote.fenced)
        finally:
            for each in silent:
                each.close()
