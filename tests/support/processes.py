"""Processes as /proc shows them: their state, and their children."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from pathlib import Path
from typing import IO


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


def readable(streams: Sequence[IO[bytes]], seconds: float) -> list[IO[bytes]]:
    """The streams that can be read or have ended within `seconds`. select(2) would refuse descriptors above 1023, which a
    process of many tests may have."""
    with selectors.DefaultSelector() as selector:
        for each in streams:
            selector.register(each, selectors.EVENT_READ)
        ready = {key.fd for key, _ in selector.select(seconds)}
    return [each for each in streams if each.fileno() in ready]
