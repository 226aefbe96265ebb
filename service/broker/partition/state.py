"""Computes the high watermark of one partition from the positions of its replicas and its disk.

Pure: events in, the new high watermark out. On a single node the in-sync set is the leader alone and the high watermark
follows the log end, held back only by appends whose topic demands a flush (`flush.messages`, `flush.ms`) until that flush
is done: readers see only records that have the configured durability.

Invariants: the high watermark never falls while this leader epoch lasts, and never passes the log end, the slowest
in-sync follower, or the first append that still waits for its flush.
"""

from __future__ import annotations

from collections import deque


class PartitionState:
    __slots__ = ("_followers", "_holds", "high_watermark", "leader_epoch", "log_end")

    def __init__(self, *, leader_epoch: int, log_end: int, high_watermark: int) -> None:
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.high_watermark = min(high_watermark, log_end)
        self._followers: dict[int, int] = {}
        self._holds: deque[tuple[int, int]] = deque()  # (base, end) of appends awaiting a flush, oldest first

    def set_in_sync(self, followers: dict[int, int]) -> bool:
        """Replaces the in-sync followers (node id -> log end). True if the high watermark rose."""
        self._followers = dict(followers)
        return self._advance()

    def appended(self, base: int, end: int, *, hold_until_flushed: bool) -> bool:
        """The leader's log now ends at `end`. True if the high watermark rose."""
        self.log_end = end
        if hold_until_flushed:
            self._holds.append((base, end))
        elif not self._holds and not self._followers:
            self.high_watermark = end
            return True
        return self._advance()

    def flushed(self, upto: int) -> bool:
        """All below `upto` is on disk. True if the high watermark rose."""
        while self._holds and self._holds[0][1] <= upto:
            self._holds.popleft()
        return self._advance()

    def follower_at(self, node_id: int, log_end: int) -> bool:
        """An in-sync follower has everything below `log_end`. True if the high watermark rose."""
        if node_id in self._followers:
            self._followers[node_id] = log_end
        return self._advance()

    def truncated(self, log_end: int) -> None:
        """The log was discarded down to `log_end` (the tier wins). The one event that may lower the high watermark."""
        self.log_end = log_end
        self._holds.clear()
        self.high_watermark = min(self.high_watermark, log_end)

    def new_epoch(self, leader_epoch: int) -> None:
        if leader_epoch < self.leader_epoch:
            raise ValueError(f"leader epoch {leader_epoch} is below {self.leader_epoch}")
        self.leader_epoch = leader_epoch

    def _advance(self) -> bool:
        ceiling = min(self._followers.values(), default=self.log_end)
        ceiling = min(ceiling, self.log_end)
        if self._holds:
            ceiling = min(ceiling, self._holds[0][0])
        if ceiling <= self.high_watermark:
            return False
        self.high_watermark = ceiling
        return True
