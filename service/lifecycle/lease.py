"""Decides whether a broker may still lead the partitions that its metadata assigns to it.

A process that was paused continues with old metadata. Meanwhile the controller may have fenced it, and an operator may have
elected a leader on another disk. A broker therefore appends only for one session timeout after its last heartbeat that was
answered or found the controller away. A controller that is away elects no leaders, so the brokers continue to serve without it.

Pure: times are in ms of one monotonic clock. Not promised: that a broker stops when it is cut off from its controller. It leads
until it learns of its successor.
"""

from __future__ import annotations

from storage_tiers.errors import NotLeader

#: The end of a lease that never ends, as on a node that is its own controller.
FOREVER = 1 << 62


class Lease:
    """`until_ms` is the time from which nothing is appended."""

    __slots__ = ("until_ms",)

    def __init__(self, until_ms: int = FOREVER) -> None:
        self.until_ms = until_ms

    def touched(self, since_ms: int, session_ms: int) -> None:
        """Extends the lease after the heartbeat sent at `since_ms` was answered or found the controller away."""
        self.until_ms = max(self.until_ms, since_ms + session_ms)

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.until_ms

    def check(self, now_ms: int) -> None:
        """Raises NotLeader if the lease is over."""
        if now_ms >= self.until_ms:
            raise NotLeader("this broker was paused and needs an answer from its controller first; refresh metadata")
