"""The client sockets of one epoll: those that are ready to be served, and those whose clients have disconnected.

The server keeps two: the members of groups have an epoll of their own, so that thousands that join again cannot stand before
everybody else in one queue. Both get a turn in each round of the event loop.

Does not promise: fairness within one epoll, beyond that a socket left over from a turn comes first in the next.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Mapping

from kafka_gateway.session import GatewaySession
from storage_tiers.turns import SLICE_S

#: The least time in seconds that a connection gets when many share a slice: of a slice each, hundreds that pipeline requests
#: would delay all others by seconds.
LEAST_SHARE_S = 0.000_05
#: Ready sockets that one poll returns. A turn serves as many of them as its slice has time for, at least one.
EVENTS_A_TURN = 4096
BROKEN = select.EPOLLHUP | select.EPOLLERR
GONE = select.EPOLLRDHUP | BROKEN


class ReadySockets:
    """`share`: the part of a slice of time that a turn may spend on these sockets."""

    __slots__ = ("epoll", "leaving", "ready", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.epoll = select.epoll()
        #: Ready sockets and their events, not served yet. None stands for a listener with a new connection, and its file
        #: descriptor then replaces the events.
        self.ready: deque[tuple[GatewaySession | None, int]] = deque()
        #: Sockets whose clients have disconnected.
        self.leaving: deque[tuple[GatewaySession, int]] = deque()

    def poll(self, sessions: Mapping[int, GatewaySession]) -> None:
        """Queues the sockets that are ready, if none is left over from the last turn: the kernel would return the same ones
        first again. Disconnected clients come after all others: thousands may leave at once, and each takes time to close."""
        if self.ready:
            return
        for fd, events in self.epoll.poll(0, EVENTS_A_TURN):
            session = sessions.get(fd)
            if session is None:
                self.ready.append((None, fd))
            elif not events & GONE:
                self.ready.append((session, events))
            elif not session.leaving:
                session.leaving = True
                self.leaving.append((session, events))


def share_of_slice(connections: int) -> float:
    """The time of each of so many connections in one slice of a turn, in seconds."""
    return max(LEAST_SHARE_S, SLICE_S / max(1, connections))
