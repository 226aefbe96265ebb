"""Computes the high watermark and the last stable offset of one partition from the positions of its replicas, its disk and its
transactions.

Pure: events in, the new offsets out. The high watermark moves only while this node leads. On a single node the leader is the
only in-sync replica, and the high watermark follows the log end. Only an append after which `flush.messages` demands a flush
holds the high watermark back until that flush is done, so that readers see only records with the configured durability.

Invariants: the high watermark falls only when the log is truncated or discarded, and never passes the log end, the slowest
in-sync follower, or the first append that still waits for its flush; it does not move with fewer in-sync replicas than the
minimum. The last stable offset is the lower of the high watermark and the first unstable offset. The first unstable offset is
the start of the oldest transaction that is open or whose marker is not below the high watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from storage_tiers.errors import FencedLeaderEpoch, UnknownLeaderEpoch
from storage_tiers.types import TopicPartition

#: The first unstable offset of a log without unstable transactions: above every offset.
ALL_STABLE = (1 << 63) - 1
#: The log end of a follower that has not fetched from this leader yet.
UNKNOWN_END = -1


class PartitionState:
    """`leads`: whether this node leads. `epoch_start` is the log end at which the leader epoch began. `min_in_sync` is the
    number of in-sync replicas, the leader included, below which the high watermark stays."""

    __slots__ = (
        "_advances_alone",
        "_followers",
        "_holds",
        "epoch_start",
        "first_unstable",
        "high_watermark",
        "leader_epoch",
        "leads",
        "log_end",
        "min_in_sync",
    )

    def __init__(self, *, leader_epoch: int, log_end: int, high_watermark: int, log_start: int = 0) -> None:
        """Begins without the leadership. `high_watermark` is the checkpointed one, which is clamped to the log."""
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.high_watermark = min(max(high_watermark, log_start), log_end)
        self.first_unstable = ALL_STABLE
        self.leads = False
        self.epoch_start = log_end
        self.min_in_sync = 1
        #: Whether only appends that wait for a flush can keep the high watermark below the log end.
        self._advances_alone = False
        self._followers: dict[int, int] = {}
        self._holds: deque[tuple[int, int]] = deque()  # (base, end) of appends awaiting a flush, oldest first

    # --- leadership ---------------------------------------------------------------------------------------------------
    def lead(self, leader_epoch: int, followers: Iterable[int] = ()) -> bool:
        """This node leads, with these followers (node ids) in sync. True if the high watermark rose, as it does at once
        without followers. Raises ValueError for an earlier epoch."""
        if not self.leads or leader_epoch != self.leader_epoch:
            self.new_epoch(leader_epoch)
            self.epoch_start = self.log_end
        self.leads = True
        return self.set_in_sync(followers)

    def follow(self) -> None:
        """This node no longer leads. Later reports of its disk or of former followers do not move the high watermark."""
        self.leads = False
        self.set_in_sync(())

    @property
    def is_behind_epoch(self) -> bool:
        """Whether records from before this leader epoch are not committed yet. Former leaders may have served them."""
        return self.leads and self.high_watermark < self.epoch_start

    def new_epoch(self, leader_epoch: int) -> None:
        """Sets the leader epoch. Raises ValueError for an earlier one."""
        self.check_epoch(leader_epoch)
        self.leader_epoch = leader_epoch

    def check_epoch(self, leader_epoch: int) -> None:
        """Raises ValueError if the epoch is earlier than the current one."""
        if leader_epoch < self.leader_epoch:
            raise ValueError(f"leader epoch {leader_epoch} is below {self.leader_epoch}")

    def refuse_epoch(self, partition: TopicPartition, current: int) -> None:
        """Raises the error for a caller whose leader epoch is `current`: FencedLeaderEpoch or UnknownLeaderEpoch."""
        if current < self.leader_epoch:
            raise FencedLeaderEpoch(
                f"{partition}: leader epoch {current} is over, the current one is {self.leader_epoch}; refresh metadata"
            )
        raise UnknownLeaderEpoch(f"{partition}: leader epoch {current} has not reached this node yet")

    # --- replicas -----------------------------------------------------------------------------------------------------
    def set_in_sync(self, followers: Iterable[int]) -> bool:
        """Replaces the in-sync followers (node ids). The end of a new follower is unknown until it fetches. True if the high
        watermark rose."""
        known = self._followers
        self._followers = {node_id: known.get(node_id, UNKNOWN_END) for node_id in followers}
        return self._replicas_changed()

    def set_min_in_sync(self, configured: int, replicas: int) -> bool:
        """As in Kafka the minimum is `min.insync.replicas`, or the number of replicas if that is less. True if the high
        watermark rose."""
        self.min_in_sync = min(configured, replicas)
        return self._replicas_changed()

    @property
    def is_under_min_in_sync(self) -> bool:
        """Whether fewer replicas are in sync than the topic demands. False where another node leads."""
        return self.leads and 1 + len(self._followers) < self.min_in_sync

    def _replicas_changed(self) -> bool:
        self._advances_alone = self.leads and not self._followers and not self.is_under_min_in_sync
        return self._advance()

    def follower_at(self, node_id: int, log_end: int) -> bool:
        """An in-sync follower has everything below `log_end`. True if the high watermark rose."""
        if node_id in self._followers:
            self._followers[node_id] = log_end
        return self._advance()

    # --- the log ------------------------------------------------------------------------------------------------------
    def appended(self, base: int, end: int, *, hold_until_flushed: bool) -> bool:
        """The log now ends at `end`. True if the high watermark rose."""
        self.log_end = end
        if hold_until_flushed:
            self._holds.append((base, end))
        elif self._advances_alone and not self._holds:
            self.high_watermark = end
            return True
        return self._advance()

    def check_continues(self, base: int) -> None:
        """Raises ValueError if a leader's batch does not continue this log, or if this node leads."""
        if self.leads or base != self.log_end:
            raise ValueError(
                f"a leader's batch of offset {base} where the log ends at {self.log_end}, leads: {self.leads}"
            )

    def flushed(self, upto: int) -> bool:
        """Everything below `upto` is on disk. True if the high watermark rose."""
        while self._holds and self._holds[0][1] <= upto:
            self._holds.popleft()
        return self._advance()

    def truncated(self, log_end: int) -> None:
        """The log was truncated to `log_end`. Only this event and `begin_at` may lower the high watermark."""
        self.log_end = log_end
        self._holds.clear()
        self.high_watermark = min(self.high_watermark, log_end)
        self.epoch_start = min(self.epoch_start, log_end)

    def begin_at(self, offset: int) -> None:
        """The log was discarded and begins again at `offset`, below which the bucket holds everything (the tier wins)."""
        self.log_end = self.high_watermark = self.epoch_start = offset
        self._holds.clear()

    def _advance(self) -> bool:
        if not self.leads or self.is_under_min_in_sync:
            return False
        ceiling = min(self._followers.values(), default=self.log_end)
        ceiling = min(ceiling, self.log_end)
        if self._holds:
            ceiling = min(ceiling, self._holds[0][0])
        if ceiling <= self.high_watermark:
            return False
        self.high_watermark = ceiling
        return True

    # --- transactions -------------------------------------------------------------------------------------------------
    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records stop here."""
        first, watermark = self.first_unstable, self.high_watermark
        return first if first < watermark else watermark

    def set_first_unstable(self, offset: int | None) -> bool:
        """`offset` is the start of the oldest unstable transaction, None if there is none. True if the last stable offset
        rose."""
        before = self.last_stable_offset
        self.first_unstable = ALL_STABLE if offset is None else offset
        return self.last_stable_offset > before
