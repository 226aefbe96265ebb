"""The tier process: all store traffic, in an interpreter of its own. `python -m storage_tiers.cold.process.main`

A broker starts it with one inherited socket, or a supervisor with the listener (`session_listener.py`) at which its brokers
request sessions. The store's location arrives over a broker's socket, credentials in the environment. The process ends when the
last socket closes, so it never outlives its broker. The kernel kills it if its supervisor ends. It also ends on SIGTERM, but
ignores SIGINT: a Ctrl-C in a terminal reaches the broker too, and the broker's last offloads still need this process.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from storage_tiers import events
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.cold.process.server import TierServer
from storage_tiers.cold.process.value_json import ProtocolError
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_store
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.files import OsFiles
from storage_tiers.parent import end_with

log = logging.getLogger("tidelog.tier")

#: glibc's parameter (mallopt(3)): blocks of at least this many bytes go back to the system when they are freed.
_M_MMAP_THRESHOLD = -3
_GIVEN_BACK_BYTES = 1 << 20
#: Added to the broker's nice value. Beside a process of normal priority that keeps a processor busy, this process gets a
#: quarter of that processor: it is slower then, but never stops.
NICENESS = 5


def give_back_freed_blocks() -> bool:
    """Fixes glibc's mmap threshold. By default glibc raises it to the size of the largest block freed, and the fragments that
    offloads leave then exceed their memory budget. Received data comes in far smaller blocks (MAX_PIECE_BYTES), which are best
    reused: mapping and faulting in a new one costs more than receiving into it. False with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES) == 1


def yield_to_the_broker() -> None:
    """Lowers this process's priority, so that a request that wakes the broker or its client does not wait for the end of this
    process's time slice. The change cannot be undone: raising the priority needs a privilege that few processes have."""
    os.nice(NICENESS)


async def _open(location: StoreLocation) -> ObjectStore:
    return await open_store(location, OsFiles(), SystemClock())


async def serve(sock: socket.socket, *, is_listener: bool) -> None:
    server = TierServer(_open, SystemClock(), SystemRng())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    await (server.run_listener(sock) if is_listener else server.run(sock))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="storage_tiers.cold.process.main", description="Started by a broker or a supervisor only."
    )
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--socket", type=int, metavar="FD", help="inherited socket to the broker")
    start.add_argument("--listener", type=int, metavar="FD", help="inherited socket at which brokers request sessions")
    parser.add_argument("--parent", type=int, metavar="PID", help="process with which this one ends")
    parser.add_argument("--log-format", choices=events.FORMS, default="text")
    parsed = parser.parse_args(arguments)
    if parsed.parent is not None:
        end_with(parsed.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    give_back_freed_blocks()
    yield_to_the_broker()
    events.set_up(logging.WARNING, parsed.log_format)
    is_listener = parsed.listener is not None
    try:
        asyncio.run(
            serve(socket.socket(fileno=parsed.listener if is_listener else parsed.socket), is_listener=is_listener)
        )
    except ProtocolError as error:
        events.error(log, "tier_process.misunderstood", error=error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
