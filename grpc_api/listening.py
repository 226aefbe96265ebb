"""Binds a listener's address before its server is loaded, so that a start whose address is taken fails early."""

from __future__ import annotations

import errno
import functools
import socket

#: Connections per socket that wait in the kernel until they are accepted.
BACKLOG = 1024
#: Errors of a machine without IPv6.
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@functools.cache
def every_address() -> str:
    """The wildcard address, which covers both families if this machine has IPv6. Raises OSError if that cannot be
    determined."""
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            tried.bind(("::", 0))
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
        return "0.0.0.0"
    return "::"


def listen(host: str, port: int) -> socket.socket:
    """A socket on `host`:`port` (0: a free port; an empty host: every address, of both families). Connections wait in
    the kernel until they are accepted. Raises OSError if the address is taken or belongs to another machine."""
    address = host or every_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    taken = socket.socket(family)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(host))
        taken.bind((address, port))
        taken.listen(BACKLOG)
    except BaseException:
        taken.close()
        raise
    return taken
