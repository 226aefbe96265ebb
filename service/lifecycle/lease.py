"""Decides whether a broker may still lead the partitions that its metadata assign to it.

A process that was paused continues with the metadata of an earlier time: the controller may have fenced it meanwhile, and an
operator may have had another disk lead its partitions. So a broker appends only for a session's length after its last contact
with its controller. A controller that does not answer at all extends the lease, too: it elects no leader, and the brokers
serve on without it.

Pure: times are milliseconds of one steady clock. Not promised: that a broker which is cut off from its controller stops; it
leads until it learns of its successor.
"""

from __future__ import annotations

from storage_tiers.errors import NotLeader

#: The end of a lease that never ends, as on a node with its own controller.
FOREVER = 1 << 62


class Lease:
    """`until_ms` is the time from which nothing is appended."""

    __slots__ = ("until_ms",)

    def __init__(self, until_ms: int = FOREVER) -> None:
        self.until_ms = until_ms

    def touched(self, since_ms: int, session_ms: int) -> None:
        """Extends the lease: the heartbeat sent at `since_ms` was answered, or found the controller away."""
        self.until_ms = max(self.until_ms, since_ms + session_ms)

    def check(self, now_ms: int) -> None:
        """NotLeader if the lease is over."""
        if now_ms >= self.until_ms:
            raise NotLeader("this broker was paused and needs an answer from its controller first; refresh metadata")
