"""Measures processor time, of a process with all its descendants and of a node's event loop, from /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """User and system time of the process and its running descendants. That of ended ones is included once their parent has
    waited for them."""
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
    """Processor time of a node's first thread, which runs its event loop."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY)

    def seconds(self) -> float:
        return int(os.pread(self._file, 64, 0).split()[0]) / 1e9
