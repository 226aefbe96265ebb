"""Ports that belong to one test, from before its server starts until after its last restart.

A port that the kernel chooses (`bind` to 0) is in the range of outgoing connections: while a server is down between two
starts, any client of a neighbouring test may get it as its own end. These ports are below that range, and every test
process has a block of its own as long as it lives: neither the workers of a run nor two runs on one machine share one.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom

_FIRST = 20_000
_END = 30_000  # Linux: net.ipv4.ip_local_port_range begins at 32768
_BLOCKS = 32
_SIZE = (_END - _FIRST) // _BLOCKS


def own_block(path: Path) -> int | None:
    """The first block that no other process has locked in the file. None if all are taken."""
    # Never closed: the lock ends with the process. Child processes inherit neither the descriptor nor the lock.
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for block in range(_BLOCKS):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, block)
        except OSError:
            continue
        return block
    return None


@functools.cache
def _ports() -> Iterator[int]:
    """Cycles through the ports of this process from a random start, because servers left running may hold the first ones."""
    block = own_block(Path(tempfile.gettempdir(), f"tidelog-test-ports-{os.getuid()}"))
    first = _FIRST + (SystemRandom().randrange(_BLOCKS) if block is None else block) * _SIZE
    return itertools.islice(itertools.cycle(range(first, first + _SIZE)), SystemRandom().randrange(_SIZE), None)


def free_port() -> int:
    """A TCP port on which nothing listens. This process returns its 311 other ports before it returns the same one again."""
    return next(port for port in _ports() if _is_free(port))


def consecutive_ports(count: int) -> list[int]:
    """`count` consecutive ports on which nothing listens."""
    ports = [free_port()]
    while len(ports) < count:
        following = free_port()
        ports = [*ports, following] if following == ports[-1] + 1 else [following]
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
