"""Kills a node's broker, its tier process, or both at once: always by process id."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def children(pid: int) -> list[int]:
    """The child processes of a node: its tier process, if one runs."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def tier_process(pid: int) -> int | None:
    """The tier process of the node `pid`, None if none runs. Any thread may have forked it, so all are checked."""
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                if b"cold.process.main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def kill_broker(pid: int) -> None:
    """Kills the broker; the tier process notices a little later, when its socket ends."""
    _kill(pid)


def kill_tier(pid: int) -> bool:
    """Kills the tier process, and the broker starts another. False if none ran."""
    tier = tier_process(pid)
    return tier is not None and _kill(tier)


def kill_node(pid: int) -> bool:
    """Kills both, the broker first: it must not see the tier process end. False if the broker was already gone."""
    tier = tier_process(pid)
    killed = _kill(pid)
    if tier is not None:
        _kill(tier)
    return killed


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
