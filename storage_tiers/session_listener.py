"""The listener of a tier process that several brokers share: a socket pair that the supervisor makes and its processes inherit.

A broker makes two socket pairs and sends one end of each to the listener, as its request for a session: the session's socket,
which carries the protocol, and a *lifeline*, on which the tier process writes its process id and which it closes after the
session has ended. So the broker knows when none of its work is left in a process that it did not start. There is no address to
guess, to protect or to clean up. The kernel keeps a broker's request until a process reads it, even while no process runs.

Invariant: anything else that arrives at the listener is read, closed and ignored, and one call of `accepted` takes a bounded
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

#: Bytes of a request. They are random, so that a new request is not taken for one that waited at the last check.
_REQUEST_BYTES = 8
#: The most bytes of one read. A read takes at most one request. Smaller reads could not keep up with a flood of bytes.
READ_BYTES = 64 << 10
#: The most reads in one turn of the event loop.
READS_A_TURN = 16
#: Python's socket module makes descriptors close-on-exec when it creates them, but not when it receives them.
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
#: Linux's option for the process that made a socket pair: its pid, uid and gid.
_MADE_BY, _UCRED = getattr(socket, "SO_PEERCRED", None), struct.Struct("3i")
_INT = struct.Struct("i")


class SessionSockets(NamedTuple):
    """The tier process's ends of a broker's two socket pairs, both non-blocking. `pid` is the broker's, 0 if the system does
    not tell it."""

    session: socket.socket
    lifeline: socket.socket
    pid: int

    def close(self) -> None:
        self.session.close()
        self.lifeline.close()


def make_listener() -> tuple[socket.socket, socket.socket]:
    """The end that the tier process reads, and the one to which brokers send their requests."""
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    inside.setblocking(False)
    outside.setblocking(False)
    return inside, outside


def accepted(listener: socket.socket) -> Iterator[SessionSockets]:
    """The sessions of the next waiting requests; after READS_A_TURN reads others may still wait. A request is lost if the
    process has no free descriptors for it, and the broker then sees its session end."""
    for _ in range(READS_A_TURN):
        try:
            said, found, _, _ = socket.recv_fds(listener, READ_BYTES, 2, socket.MSG_DONTWAIT | _CLOSE_ON_EXEC)
        except BlockingIOError:
            return
        if not said:
            return
        sockets = [made for each in found if (made := _unix_stream(each)) is not None]
        if len(sockets) == 2:
            yield SessionSockets(sockets[0], sockets[1], _maker_of(sockets[0]))
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


def waiting_at(listener: socket.socket) -> tuple[bytes, int]:
    """The first bytes that wait to be read, which stay there, and the number of all that wait; 0 if none do."""
    try:
        first = listener.recv(_REQUEST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b"", 0
    (size,) = _INT.unpack(fcntl.ioctl(listener, termios.FIONREAD, bytes(_INT.size)))
    return first, size


def request_session(listener: socket.socket, session: socket.socket, lifeline: socket.socket) -> None:
    """Sends copies of the two sockets to the process that reads the listener. Raises OSError if too many requests wait."""
    said = os.urandom(_REQUEST_BYTES)
    socket.send_fds(listener, [said], [session.fileno(), lifeline.fileno()], socket.MSG_DONTWAIT)
