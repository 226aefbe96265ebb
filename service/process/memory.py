"""Returns memory from the C heap to the system after large messages.

glibc keeps freed memory for later allocations. After the first large block is freed, it serves even blocks of megabytes from
the heap, so a short period of slow readers would make the node permanently four times as large. Without that behaviour, every
large request would pay for page faults. The node therefore enables it from the start, and a thread trims the heap when the
process has grown.

Not promised: any effect without glibc.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

#: Bytes by which the process must grow before a trim is worthwhile.
GROWN_BYTES = 32 << 20
TICK_S = 5.0
#: Bytes of freed memory at the heap's end that glibc keeps until a trim.
KEPT_BYTES = 64 << 20
#: glibc's parameters (mallopt(3)): the size from which blocks are mapped, and the free bytes that are kept at the heap's end.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
#: Most ticks between two trims that return little. A trim takes a few milliseconds, and the memory may be in use.
LONGEST_PAUSE_TICKS = 64


def resident_bytes() -> int:
    """Resident size of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def keep_freed_blocks() -> bool:
    """Makes glibc serve blocks of megabytes from its heap, and keep freed blocks until a trim. By default it maps and unmaps
    each block, and the page faults cost more than the work on the block: receiving 4 MiB over gRPC takes 4 ms instead of 0.7.
    Returns False with another C library."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(parameter, value) == 1
        for parameter, value in ((_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    )


def trim_heap() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class HeapTrimmer:
    """Trims the heap while the process is larger than its smallest size by more than GROWN_BYTES. Trims less often if a trim
    returns little."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] = trim_heap) -> None:
        self._resident = resident
        self._trim = trim
        self._least = self._last = resident()
        self._pause = 1
        self._skip = 0

    async def tick(self) -> None:
        size = self._resident()
        self._least = min(self._least, size)
        if size > self._last + GROWN_BYTES:
            self._pause, self._skip = 1, 0
        if size <= self._least + GROWN_BYTES:
            self._last = size
            return
        if self._skip > 0:
            self._skip -= 1
            return
        await asyncio.to_thread(self._trim)
        self._last = self._resident()
        given = size - self._last
        self._pause = 1 if given > GROWN_BYTES // 2 else min(self._pause * 2, LONGEST_PAUSE_TICKS)
        self._skip = self._pause - 1
