"""The ready sockets of an epoll: each is queued once, and those of clients that leave in a queue of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_gateway.ready_sockets import GONE, ReadySockets
from kafka_gateway.session import READ


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def sockets(pair: tuple[socket.socket, socket.socket]) -> Iterator[ReadySockets]:
    found = ReadySockets(1)
    found.epoll.register(pair[0].fileno(), READ)
    yield found
    found.epoll.close()


def session() -> Any:
    return cast("Any", SimpleNamespace(leaving=False))


def test_a_socket_left_over_from_a_turn_is_not_queued_again(
    pair: tuple[socket.socket, socket.socket], sockets: ReadySockets
) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    one = session()
    for _ in range(2):
        sockets.poll({ours.fileno(): one})
        assert [each for each, _ in sockets.ready] == [one]
    assert not sockets.leaving


def test_a_client_that_leaves_is_queued_once(pair: tuple[socket.socket, socket.socket], sockets: ReadySockets) -> None:
    ours, theirs = pair
    theirs.close()
    one = session()
    for _ in range(2):
        sockets.poll({ours.fileno(): one})
        assert [each for each, events in sockets.leaving if events & GONE] == [one]
    assert not sockets.ready


def test_a_listener_is_queued_by_its_number(pair: tuple[socket.socket, socket.socket], sockets: ReadySockets) -> None:
    ours, theirs = pair
    theirs.send(b"x")
    sockets.poll({})
    assert list(sockets.ready) == [(None, ours.fileno())]
