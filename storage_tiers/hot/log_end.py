"""Where a log ends: the offset that the next batch gets, and what all batches before it add up to.

Invariant: the three fields tell of exactly the same batches. So whoever appends moves them together, and a truncation sets them
together. `epochs` reaches back over what has left the disk; `producers` are those of the log's own records.
"""

from __future__ import annotations

from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.producer_state import ProducerStateManager


class LogEnd:
    """`offset` is that after the last batch, `epochs` which leader wrote which offsets, `producers` the idempotent ones."""

    __slots__ = ("epochs", "offset", "producers")

    def __init__(self, offset: int, epochs: LeaderEpochs, producers: ProducerStateManager) -> None:
        self.set(offset, epochs, producers)

    def set(self, offset: int, epochs: LeaderEpochs, producers: ProducerStateManager) -> None:
        """The log ends elsewhere: it was truncated, or begun anew."""
        self.offset = offset
        self.epochs = epochs
        self.producers = producers
