"""Gives the system back what large messages leave behind in the C heap.

glibc keeps freed memory for the next allocation, and after the first large one it serves even blocks of megabytes from the
heap: readers that were slow for a moment would make the node four times as large for good. To turn that off would cost every
large request its page faults. So it is turned on from the start, and the heap is trimmed, in a thread, when the process has
grown.

Not promised: anything where there is no glibc.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

#: Growth of the process that is worth a look at its heap.
GROWN_BYTES = 32 << 20
TICK_S = 5.0
#: Freed memory at the heap's end that waits for the trimmer.
KEPT_BYTES = 64 << 20
#: glibc's parameters (mallopt(3)): blocks from so many bytes on are mapped; so many free ones at the heap's end are kept.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
#: Ticks between two trims that give little back, each of which takes some milliseconds: what has grown may be in use.
LONGEST_PAUSE_TICKS = 64


def resident_bytes() -> int:
    """What of this process is in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def keep_freed_blocks() -> bool:
    """Makes glibc serve blocks of megabytes from its heap, and keep what is freed until it is trimmed: by itself it maps and
    unmaps each, and the page faults cost more than what the blocks are for (4 MiB received over gRPC: 0.7 in place of 4 ms).
    False with another C library."""
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
    """Trims while the process is larger than it ever was before; the less that gives, the more seldom."""

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
