"""Ending a node the hard way: its broker alone, its tier process alone, or both at one moment. By process id only."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def children(pid: int) -> list[int]:
    """Of a node: its tier process, if one runs."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def tier_process(pid: int) -> int | None:
    """The tier process of the node `pid`, None if none runs. A thread may have forked it: all are asked."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                if b"cold.process.main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def kill_broker(pid: int) -> None:
    """The tier process notices by the end of its socket, a little later."""
    _kill(pid)


def kill_tier(pid: int) -> None:
    """The broker starts another one."""
    tier = tier_process(pid)
    if tier is not None:
        _kill(tier)


def kill_node(pid: int) -> None:
    """Both, the broker first: it must not see the other's end."""
    tier = tier_process(pid)
    _kill(pid)
    if tier is not None:
        _kill(tier)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
