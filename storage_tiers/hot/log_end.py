"""The end of a log: the offset of the next batch, and the epoch and producer state of all batches before it.

Invariant: the three fields describe exactly the same batches, so an append moves them together and a truncation sets them
together. `epochs` also covers records that have left the disk; `producers` covers only the log's own records.
"""

from __future__ import annotations

from storage_tiers.hot.leader_epochs import LeaderEpochs
from storage_tiers.hot.producer_state import ProducerStateManager


class LogEnd:
    """`offset` follows the last batch; `epochs` records which leader wrote which offsets; `producers` holds the state of
    idempotent producers."""

    __slots__ = ("epochs", "offset", "producers")

    def __init__(self, offset: int, epochs: LeaderEpochs, producers: ProducerStateManager) -> None:
        self.set(offset, epochs, producers)

    def set(self, offset: int, epochs: LeaderEpochs, producers: ProducerStateManager) -> None:
        """Moves the end after a truncation or a fresh start."""
        self.offset = offset
        self.epochs = epochs
        self.producers = producers
