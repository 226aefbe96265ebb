"""The metrics of a process that every Prometheus client library has, from Linux's /proc."""

from __future__ import annotations

import os
import resource
import time

from service.observability.exposition import Exposition

_PAGE = resource.getpagesize()
_TICKS_S = os.sysconf("SC_CLK_TCK")
#: Indexes of fields in /proc/PID/stat, counted after the command's name.
_THREADS, _START, _VIRTUAL, _RESIDENT = 17, 19, 20, 21


def resident_bytes_of(process_id: int) -> int:
    """The resident memory of a process; 0 if there is no such process."""
    fields = _stat(process_id)
    return int(fields[_RESIDENT]) * _PAGE if fields else 0


def collect_process(into: Exposition) -> None:
    """Puts the figures of this process."""
    into.put("process_cpu_seconds_total", time.process_time())
    into.put("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    fields = _stat(os.getpid())
    if fields:
        into.put("process_resident_memory_bytes", int(fields[_RESIDENT]) * _PAGE)
        into.put("process_virtual_memory_bytes", int(fields[_VIRTUAL]))
        into.put("process_threads", int(fields[_THREADS]))
        into.put("process_start_time_seconds", _boot_time() + int(fields[_START]) / _TICKS_S)
        into.put("process_open_fds", len(os.listdir("/proc/self/fd")) - 1)


def _stat(process_id: int) -> list[str]:
    try:
        with open(f"/proc/{process_id}/stat", encoding="ascii", errors="replace") as file:
            # The command's name may contain spaces and brackets.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _boot_time() -> float:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return next((float(line.split()[1]) for line in file if line.startswith("btime ")), 0.0)
    except OSError:
        return 0.0
