"""Requests a short time slice from Linux for this thread, and reads how long the thread waited for a processor.

A broker's event loop sleeps most of the time and works for fractions of a millisecond. Next to busy processes (a backfill's
downloads, a consumer on the same machine), it would wait until one of them has used up its time slice. Since Linux 6.12, a
thread may request a shorter slice for itself. Its share of the processor stays the same, but it runs sooner (sched_setattr(2):
`sched_runtime` of a SCHED_OTHER thread).

Best effort: on older kernels, and in containers that forbid the call, nothing changes. Not promised: any effect on systems
other than Linux, or on processors whose system call numbers are not in this module. Threads and processes that this thread
starts do not inherit the slice, because they should wait.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

#: The shortest slice that Linux grants, in nanoseconds.
SHORTEST_SLICE_NS = 100_000

#: sched_setattr and sched_getattr by machine (the kernel's syscall tables).
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
#: struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period, and the two clamps of util.
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_SCHED_OTHER = 0
_RESET_ON_FORK = 1


def shorten_slice(nanoseconds: int = SHORTEST_SLICE_NS) -> bool:
    """Sets the calling thread's slice and keeps its nice value. Returns False if the system refuses, or if the thread has
    another scheduling policy."""
    calls = _CALLS.get(platform.machine())
    if calls is None or not hasattr(os, "sched_getscheduler"):
        return False
    attributes = _attributes(calls[1])
    if attributes is None or attributes[1] != _SCHED_OTHER:
        return False
    nice = attributes[3]
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, _SCHED_OTHER, _RESET_ON_FORK, nice, 0, nanoseconds, 0, 0, 0, 0)
    if ctypes.CDLL(None).syscall(calls[0], 0, wanted, 0) != 0:
        return False
    return slice_of() == nanoseconds


def slice_of(thread: int = 0) -> int | None:
    """The slice of a thread in nanoseconds, requested or chosen by the kernel; None if it is unknown. `thread` is 0 for the
    calling thread."""
    calls = _CALLS.get(platform.machine())
    attributes = None if calls is None else _attributes(calls[1], thread)
    return attributes[5] if attributes is not None else None


def waited_s() -> float:
    """Seconds since its start during which the calling thread was ready to run but did not run, because no processor was free
    or its container's quota was used up. 0 if the system does not count them. Linux counts them in schedstat."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(80).split()[1]) / 1e9
    except OSError:
        return 0.0


def _attributes(call: int, thread: int = 0) -> tuple[int, ...] | None:
    answer = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if ctypes.CDLL(None).syscall(call, thread, answer, _ATTRIBUTES.size, 0) != 0:
        return None
    return _ATTRIBUTES.unpack(answer.raw)
