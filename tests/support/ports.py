"""Ports that belong to one test, from before its server starts until after its last restart.

A port that the kernel chooses (`bind` to 0) is in the range of outgoing connections: while a server is down between two
starts, any client of a neighbouring test may get it as its own end. These ports are below that range, and every worker of
pytest-xdist has its own share.
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
    """Cycles through a worker's ports from a random start, so that a second run on this machine starts elsewhere."""
    size = (_END - _FIRST) // _WORKERS
    first = _FIRST + worker % _WORKERS * size
    return itertools.islice(itertools.cycle(range(first, first + size)), random.SystemRandom().randrange(size), None)


_ports = _share(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


def free_port() -> int:
    """A TCP port on which nothing listens. This process returns its 624 other ports before it returns the same one again."""
    return next(port for port in _ports if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
