"""The number of processors that this process may use."""

from __future__ import annotations

import math
import os

#: A control group's quota (cgroup v2): microseconds of processor time, or `max`, and the microseconds of the period.
_QUOTA = "/sys/fs/cgroup/cpu.max"


def usable_cores(quota_path: str = _QUOTA) -> int:
    """The number of processors in this process's affinity, but at most its control group's quota, rounded up, and at least
    1."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open(quota_path, encoding="ascii") as file:
            time, period = file.read().split()
        return max(1, min(cores, math.ceil(int(time) / int(period))))
    except (OSError, ValueError):  # no control group, or no quota
        return cores
