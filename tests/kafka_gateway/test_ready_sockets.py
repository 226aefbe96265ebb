"""The ready sockets of an epoll: each is queued once, and clients that leave have a queue of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafka_gateway import ready_sockets
from kafka_gateway.ready_sockets import BESIDE_S, GONE, MEMBERS_SHARE, MEMBERS_SHARE_BESIDE_OTHERS, ReadySockets
from kafka_gateway.session import READ


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def sockets(pair: tuple[socket.socket, socket.socket]) -> Iterator[ReadySockets]:
    found = ReadySockets()
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


def test_members_get_a_smaller_part_of_a_slice_while_others_are_served() -> None:
    others = ReadySockets()
    members = ReadySockets(others)
    assert others.share(0.0) == 1
    assert members.share(0.0) == MEMBERS_SHARE
    others.served_at = 5.0
    assert members.share(5.0 + BESIDE_S / 2) == MEMBERS_SHARE_BESIDE_OTHERS < MEMBERS_SHARE
    assert members.share(5.0 + BESIDE_S) == MEMBERS_SHARE
    for each in (others, members):
        each.epoll.close()


def test_others_come_first_unless_they_are_left_over_from_their_own_turn(
    pair: tuple[socket.socket, socket.socket], sockets: ReadySockets
) -> None:
    """If left-over clients came first again, they would get two turns for each turn of the members."""
    ours, theirs = pair
    members = ReadySockets(sockets)
    one = session()
    assert members.poll_others({ours.fileno(): one}) is None
    theirs.send(b"x")
    assert members.poll_others({ours.fileno(): one}) is sockets
    assert [each for each, _ in sockets.ready] == [one]
    assert members.poll_others({ours.fileno(): one}) is None
    assert sockets.poll_others({ours.fileno(): one}) is None
    members.epoll.close()


def test_a_poll_names_a_bounded_number_of_members_and_later_polls_name_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands may be ready together; members beyond the bound wait in the kernel."""
    monkeypatch.setattr(ready_sockets, "MEMBERS_A_POLL", 2)
    clients = ReadySockets()
    members = ReadySockets(clients)
    pairs = [socket.socketpair() for _ in range(5)]
    sessions = {}
    for ours, theirs in pairs:
        members.epoll.register(ours.fileno(), READ)
        sessions[ours.fileno()] = session()
        theirs.send(b"x")
    seen = []
    for _ in range(3):
        members.poll(sessions)
        assert 0 < len(members.ready) <= 2
        seen += [each for each, _ in members.ready]
        members.ready.clear()
    assert {id(each) for each in seen} == {id(each) for each in sessions.values()}
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    for sockets in (members, clients):
        sockets.epoll.close()
