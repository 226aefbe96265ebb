"""The client sockets of one epoll: those that are ready to be served, and those whose clients have disconnected. And the few
that the event loop watches itself.

The server keeps two: the members of groups have an epoll of their own, so that thousands that join again cannot stand before
everybody else in one queue. Both get a turn in each round of the event loop, and the other clients' is the first. Members get
a small part of a slice while others produce or fetch: whatever arrives during their turn waits for its end.

Does not promise: fairness within one epoll, beyond that a socket left over from a turn comes first in the next.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Mapping

from kafka_gateway.session import GatewaySession
from storage_tiers.turns import SLICE_S

#: The least time in seconds that a connection gets when many share a slice: of a slice each, hundreds that pipeline requests
#: would delay all others by seconds.
LEAST_SHARE_S = 0.000_05
#: Ready sockets that one poll returns, and those of members. A turn serves as many of them as its slice has time for, at least
#: one. Naming thousands of members takes most of a millisecond, and a turn serves some ten of them beside others.
EVENTS_A_TURN, MEMBERS_A_POLL = 4096, 256
#: The requests of group members: JoinGroup, Heartbeat, LeaveGroup, SyncGroup. All members of a group send at once.
MEMBER_APIS = frozenset({11, 12, 13, 14})
#: The requests that members leave most of the time to: Produce and Fetch. Others, such as the FindCoordinator of each member
#: that joins, would make a rebalance beside nothing else take twice the time.
RECORD_APIS = frozenset({0, 1})
#: The part of a slice that their connections get in a turn, and the part while other clients produce or fetch.
MEMBERS_SHARE, MEMBERS_SHARE_BESIDE_OTHERS = 0.25, 0.06
#: Seconds for which that counts after the last such request.
BESIDE_S = 1.0
BROKEN = select.EPOLLHUP | select.EPOLLERR
GONE = select.EPOLLRDHUP | BROKEN


class ReadySockets:
    """`others`, if any, are served first. `served_at`: when one of these clients last produced or fetched, in seconds. The
    server sets it."""

    __slots__ = ("epoll", "leaving", "others", "ready", "served_at")

    def __init__(self, others: ReadySockets | None = None) -> None:
        self.others = others
        self.epoll = select.epoll()
        self.served_at = -BESIDE_S
        #: Ready sockets and their events, not served yet. None stands for a listener with a new connection, and its file
        #: descriptor then replaces the events.
        self.ready: deque[tuple[GatewaySession | None, int]] = deque()
        #: Sockets whose clients have disconnected.
        self.leaving: deque[tuple[GatewaySession, int]] = deque()

    def share(self, now: float) -> float:
        """The part of a slice of time that a turn that begins `now` may spend on these sockets."""
        if self.others is None:
            return 1.0
        return MEMBERS_SHARE_BESIDE_OTHERS if now < self.others.served_at + BESIDE_S else MEMBERS_SHARE

    def poll_others(self, sessions: Mapping[int, GatewaySession]) -> ReadySockets | None:
        """The others if they come first now: something of them is ready, and not only left over from a turn of their own."""
        others = self.others
        if others is None or others.ready:
            return None
        others.poll(sessions)
        return others if others.ready else None

    def poll(self, sessions: Mapping[int, GatewaySession]) -> None:
        """Queues the sockets that are ready, if none is left over from the last turn: the kernel would return the same ones
        first again. Disconnected clients come after all others: thousands may leave at once, and each takes time to close."""
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
    """Sockets that the event loop watches itself: `turn_of` serves each in a turn of its own."""

    __slots__ = ("_loop", "_sessions", "_turn_of")

    def __init__(self, loop: asyncio.AbstractEventLoop, turn_of: Callable[[GatewaySession], None]) -> None:
        self._loop = loop
        self._turn_of = turn_of
        self._sessions: set[GatewaySession] = set()

    def add(self, session: GatewaySession) -> None:
        session.by_loop = True
        self._sessions.add(session)
        self._loop.add_reader(session.fd, self._turn_of, session)

    def remove(self, session: GatewaySession) -> None:
        session.by_loop = False
        self._sessions.remove(session)
        self._loop.remove_reader(session.fd)

    def share(self, session: GatewaySession) -> None:
        """From now on it shares its epoll's turns."""
        self.remove(session)
        session.epoll.register(session.fd, session.events)

    def share_all(self) -> None:
        for session in tuple(self._sessions):
            self.share(session)


def share_of_slice(connections: int) -> float:
    """The time of each of so many connections in one slice of a turn, in seconds."""
    return max(LEAST_SHARE_S, SLICE_S / max(1, connections))
