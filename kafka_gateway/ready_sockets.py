"""The client sockets of one epoll (those that are ready to be served, and those whose clients have disconnected), and the
sockets that the event loop watches itself.

The server has two epolls. Group members have an epoll of their own, so that other clients do not queue behind thousands of
members that join again. Both epolls get a turn in each round of the event loop; the other clients' turn comes first. A request
that arrives during the members' turn waits for the end of that turn, so the turn is short while other clients produce or fetch.

Within an epoll, the only fairness rule is that sockets left over from a turn come first in the next turn.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping

from kafka_gateway.session import GatewaySession
from storage_tiers.turns import SLICE_S

#: The least time in seconds that a connection gets when many share a slice. If each got a whole slice, hundreds of connections
#: that pipeline requests would delay all others by seconds.
LEAST_SHARE_S = 0.000_05
#: Most ready sockets that one poll returns, for other clients and for members. A turn serves as many of them as fit into its
#: slice, at least one. Polling thousands takes most of a millisecond, but a members' turn beside other clients serves only
#: about ten.
EVENTS_A_TURN, MEMBERS_A_POLL = 4096, 256
#: The requests of group members: JoinGroup, Heartbeat, LeaveGroup, SyncGroup. All members of a group send them at once.
MEMBER_APIS = frozenset({11, 12, 13, 14})
#: The requests that shorten the members' turn: Produce and Fetch. If other requests counted, such as the FindCoordinator of
#: each joining member, a rebalance on an otherwise idle node would take twice the time.
RECORD_APIS = frozenset({0, 1})
#: The part of a slice that members' connections get in a turn, and the part while other clients produce or fetch.
MEMBERS_SHARE, MEMBERS_SHARE_BESIDE_OTHERS = 0.25, 0.06
#: Seconds after a Produce or Fetch during which the shorter turn applies.
BESIDE_S = 1.0
BROKEN = select.EPOLLHUP | select.EPOLLERR
GONE = select.EPOLLRDHUP | BROKEN


class ReadySockets:
    """`others`, if any, are served first. `served_at` is when a client of this object last produced or fetched, in seconds; the
    server sets it."""

    __slots__ = ("epoll", "leaving", "others", "ready", "served_at")

    def __init__(self, others: ReadySockets | None = None) -> None:
        self.others = others
        self.epoll = select.epoll()
        self.served_at = -BESIDE_S
        #: Ready sockets that are not served yet, and their events. A listening socket with a new connection has None and its
        #: file descriptor instead.
        self.ready: deque[tuple[GatewaySession | None, int]] = deque()
        #: Sockets whose clients have disconnected.
        self.leaving: deque[tuple[GatewaySession, int]] = deque()

    def share(self, now: float) -> float:
        """The part of a slice that a turn of these sockets gets if it begins at `now`."""
        if self.others is None:
            return 1.0
        return MEMBERS_SHARE_BESIDE_OTHERS if now < self.others.served_at + BESIDE_S else MEMBERS_SHARE

    def poll_others(self, sessions: Mapping[int, GatewaySession]) -> ReadySockets | None:
        """Polls the other clients' sockets. Returns them if they must be served now: a socket is newly ready, and none was left
        over from their own turn."""
        others = self.others
        if others is None or others.ready:
            return None
        others.poll(sessions)
        return others if others.ready else None

    def poll(self, sessions: Mapping[int, GatewaySession]) -> None:
        """Queues the ready sockets if none is left over from the last turn; otherwise the kernel would return the same sockets
        again. Disconnected clients come after all others, because thousands may leave at once, and each takes time to close."""
        if self.ready:
            return
        for fd, events in self.epoll.poll(0, EVENTS_A_TURN if self.others is None else MEMBERS_A_POLL):
            session = sessions.get(fd)
            if session is None:
                self.ready.append((None, fd))
            elif not events & GONE:
                self.ready.append((session, events))
            elif not session.leaving:
                session.leaving = True
                self.leaving.append((session, events))


class LoopSockets:
    """Sockets that the event loop watches itself; `turn_of` serves each of them in a turn of its own. A socket that has moved
    to its epoll's turns stays there, even if most other connections have closed."""

    __slots__ = ("_loop", "_sessions", "_turn_of")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_of: Callable[[GatewaySession], None]) -> None:
        self._loop = loop
        self._turn_of = turn_of
        self._sessions: set[GatewaySession] = set()

    def welcome(self, session: GatewaySession, *, are_few: bool) -> None:
        """Takes a new socket. If there are many connections, it and all other sockets share their epolls' turns instead."""
        if are_few:
            session.by_loop = True
            self._sessions.add(session)
            self._loop.add_reader(session.fd, self._turn_of, session)
            return
        session.epoll.register(session.fd, session.events)
        for other in tuple(self._sessions):
            self.share(other)

    def remove(self, session: GatewaySession) -> None:
        session.by_loop = False
        self._sessions.remove(session)
        self._loop.remove_reader(session.fd)

    def share(self, session: GatewaySession) -> None:
        """Moves a socket permanently to the turns of its epoll."""
        self.remove(session)
        session.epoll.register(session.fd, session.events)


def share_of_slice(connections: int) -> float:
    """The seconds that each of `connections` gets in one slice of a turn."""
    return max(LEAST_SHARE_S, SLICE_S / max(1, connections))
