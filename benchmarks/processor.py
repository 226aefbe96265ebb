"""Measures the processor time of a process with all its descendants (from /proc), and of a node's event loop."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections import defaultdict
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """Returns the user and system time of the process and its running descendants. The time of a descendant that has ended is
    included once its parent has waited for it."""
    children: dict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a process that has just ended
        own = int(stat.parent.name)
        children[int(fields[1])].append(own)
        used[own] = sum(int(ticks) for ticks in fields[11:15])
    wanted, total = [pid], 0
    while wanted:
        each = wanted.pop()
        total += used.get(each, 0)
        wanted += children[each]
    return total / TICKS_A_SECOND


class LoopTime:
    """The processor time of a node's main thread, which runs its event loop. It comes from the task clock of
    perf_event_open(2). Where the system does not allow that, it comes from the scheduler's statistics, which may be a tick
    (4 ms) old while the thread runs."""

    def __init__(self, pid: int) -> None:
        self._clock = _task_clock(pid)
        self._file = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)

    @property
    def is_exact(self) -> bool:
        return self._clock is not None

    def seconds(self) -> float:
        if self._clock is not None:
            return int.from_bytes(os.read(self._clock, 8), "little") / 1e9
        return int(os.pread(self._file, 64, 0).split()[0]) / 1e9


def _task_clock(thread: int) -> int | None:
    """Opens the thread's task clock, which counts ns from this call on. Returns its descriptor; None if the system refuses."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return None
    attributes = ctypes.create_string_buffer(_ATTRIBUTES, len(_ATTRIBUTES))
    found = int(ctypes.CDLL(None).syscall(_PERF_EVENT_OPEN, attributes, thread, -1, -1, _CLOEXEC))
    return found if found >= 0 else None


#: The system call number of perf_event_open on x86-64, and the call's flag for close-on-exec.
_PERF_EVENT_OPEN, _CLOEXEC = 298, 8
#: struct perf_event_attr in its first version: the event's type (software), the struct's size, and the event (task clock).
_ATTRIBUTES = struct.pack("=IIQ40x", 1, 64, 1) + bytes(8)
