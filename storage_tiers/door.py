"""The door of a tier process that several brokers share: a socket pair that the supervisor makes and its processes inherit.

A broker makes two socket pairs and sends one end of each through the door: its session's socket, which carries the protocol,
and a *lifeline*, on which the tier process writes its process id and which it closes after the session has ended. So the broker
knows when none of its work is left in a process that it did not start. There is no address to guess, to protect or to clean up.
The kernel keeps a broker's knock until a process reads it, even while no process runs.

Invariant: anything but a knock that arrives at the door is read, closed and ignored, and a look at the door takes a bounded
time.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from typing import NamedTuple

#: Bytes of a knock. They are random, so that a new knock is not taken for one that has waited since the last look.
_KNOCK_BYTES = 8
#: The most bytes of one read at the door. A read takes at most one knock. Smaller reads could not keep up with a flood of
#: bytes.
READ_BYTES = 64 << 10
#: The most reads in one turn of the event loop.
READS_A_TURN = 16
#: Python's socket module makes descriptors close-on-exec when it creates them, but not when it receives them.
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
#: Linux's option for the process that made a socket pair: its pid, uid and gid.
_MADE_BY, _UCRED = getattr(socket, "SO_PEERCRED", None), struct.Struct("3i")
_INT = struct.Struct("i")


class Visitor(NamedTuple):
    """The tier process's ends of a broker's two socket pairs, both non-blocking. `pid` is the broker's, 0 if the system does
    not tell it."""

    session: socket.socket
    lifeline: socket.socket
    pid: int

    def send_away(self) -> None:
        self.session.close()
        self.lifeline.close()


def make_door() -> tuple[socket.socket, socket.socket]:
    """The end that the tier process reads, and the one on which brokers knock."""
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    inside.setblocking(False)
    outside.setblocking(False)
    return inside, outside


def visitors_at(door: socket.socket) -> Iterator[Visitor]:
    """The next brokers that wait at the door; after READS_A_TURN reads others may still wait. A knock is lost if the process
    has no free descriptors for it, and the broker then sees its session end."""
    for _ in range(READS_A_TURN):
        try:
            said, found, _, _ = socket.recv_fds(door, READ_BYTES, 2, socket.MSG_DONTWAIT | _CLOSE_ON_EXEC)
        except BlockingIOError:
            return
        if not said:
            return
        sockets = [made for each in found if (made := _unix_stream(each)) is not None]
        if len(sockets) == 2:
            yield Visitor(sockets[0], sockets[1], _maker_of(sockets[0]))
        else:
            for made in sockets:
                made.close()


def _unix_stream(descriptor: int) -> socket.socket | None:
    """The socket of this descriptor, or None. Another kind of file is closed."""
    try:
        made = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    if (made.family, made.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
        made.close()
        return None
    made.setblocking(False)
    return made


def _maker_of(sock: socket.socket) -> int:
    if _MADE_BY is None:
        return 0
    pid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, _MADE_BY, _UCRED.size))[0]
    return pid


def waiting_at(door: socket.socket) -> tuple[bytes, int]:
    """The first bytes that wait at the door, which stay there, and the number of all that wait; 0 if the door is empty."""
    try:
        first = door.recv(_KNOCK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b"", 0
    (size,) = _INT.unpack(fcntl.ioctl(door, termios.FIONREAD, bytes(_INT.size)))
    return first, size


def knock(door: socket.socket, session: socket.socket, lifeline: socket.socket) -> None:
    """Hands copies of the two sockets to the process behind the door. Raises OSError if too many brokers wait there."""
    said = os.urandom(_KNOCK_BYTES)
    socket.send_fds(door, [said], [session.fileno(), lifeline.fileno()], socket.MSG_DONTWAIT)
