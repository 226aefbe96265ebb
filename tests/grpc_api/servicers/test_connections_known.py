"""The connections that count as open, also if the caller that began a check is cancelled or no descriptor is left for the
check."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from grpc_api.servicers import connections
from grpc_api.servicers.connections import Connections
from storage_tiers.errors import Busy


class Callers:
    """Connections to a port of this process."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._near: dict[str, socket.socket] = {}
        self._far: list[socket.socket] = []

    @property
    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    def connect(self) -> str:
        """Returns the name that gRPC gives the connection."""
        self._far.append(socket.create_connection(self._listener.getsockname()))
        near, (host, number) = self._listener.accept()
        name = f"ipv4:{host}:{number}"
        self._near[name] = near
        return name

    def leave(self, name: str) -> None:
        self._near.pop(name).close()

    def close(self) -> None:
        for each in (*self._near.values(), *self._far):
            each.close()


@pytest.fixture
def callers() -> Iterator[Callers]:
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(Callers(listener)) as made:
        yield made


@pytest.fixture
def known(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> Connections:
    monkeypatch.setattr(connections, "LOOK_S", 0)
    made = Connections(1)
    made.port = callers.port
    return made


async def test_a_check_of_a_cancelled_caller_does_not_count_as_a_new_one(known: Connections, callers: Callers) -> None:
    first, second = callers.connect(), callers.connect()
    await known.admit(first)
    leaving = asyncio.ensure_future(known.admit(second))
    await asyncio.sleep(0)
    looking = known._looking
    assert looking is not None
    leaving.cancel()
    await asyncio.wait({looking})
    callers.leave(first)
    await known.admit(second)
    assert known.admitted == {second}


async def test_without_descriptors_no_client_counts_as_gone(known: Connections, callers: Callers) -> None:
    first, second = callers.connect(), callers.connect()
    await known.admit(first)
    with no_descriptors(), pytest.raises(Busy):
        await known.admit(second)
    assert known.admitted == {first}


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    try:
        with pytest.raises(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)
