"""Takes an address before what serves there is loaded, so that a start which cannot have it fails early."""

from __future__ import annotations

import errno
import functools
import socket

#: Who connects and is not accepted yet waits in the kernel, as many for each socket.
BACKLOG = 1024
#: What a machine says that has no IPv6.
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@functools.cache
def every_address() -> str:
    """What stands for all addresses of this machine: of both families where it has IPv6."""
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
    """A socket on `host`:`port` (0: a free port; an empty host: every address, of both families). Who connects waits in the
    kernel until it is accepted. Raises OSError where the address cannot be had."""
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
