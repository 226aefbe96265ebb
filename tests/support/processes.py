"""Processes as /proc shows them: which ones live, and whose children they are."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int) -> str:
    """The state letter that ps(1) shows; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def children(pid: int) -> set[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return {int(each) for thread in threads for each in (thread / "children").read_text().split()}
    except OSError:
        return set()


def descendants(pid: int) -> set[int]:
    found = children(pid)
    return found | {each for child in found for each in descendants(child)}
