"""Ports that stay one test's own, from before its server starts until after it has started again.

A port the kernel chose (`bind` to 0) lies among the ports of outgoing connections: while a server is down between two
starts, any client of a neighbouring test may get it as its own end. These lie below, and every worker of pytest-xdist
has a share of its own.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator

_FIRST = 20_000
_END = 30_000  # Linux: net.ipv4.ip_local_port_range begins at 32768
_WORKERS = 16


def _share(worker: int) -> Iterator[int]:
    """Cycles through a worker's ports from a start of its own, so that a second run beside this one starts elsewhere."""
    size = (_END - _FIRST) // _WORKERS
    first = _FIRST + worker % _WORKERS * size
    return itertools.islice(itertools.cycle(range(first, first + size)), random.SystemRandom().randrange(size), None)


_ports = _share(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


def free_port() -> int:
    """A TCP port on which nothing listens, and that this process gives to nobody else before it has given its 624 others."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
