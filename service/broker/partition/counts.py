"""Counts one partition's requests and their outcomes, as plain numbers that metrics sum by topic.

The log's own counts (records and bytes appended, bytes read) are not repeated here. Counts begin when the partition opens.
Those of closed partitions stay in `Partitions.past`, so that totals never fall.
"""

from __future__ import annotations

from storage_tiers.errors import CorruptRecord, InvalidRecord, LogError
from storage_tiers.records.batch import CURRENT_MAGIC, MAGIC


class RefusedBatches:
    """Counts invalid batches by the violated rule, for Kafka's four metrics."""

    __slots__ = ("checksum", "format", "key", "other")

    def __init__(self) -> None:
        self.format = self.checksum = self.key = self.other = 0

    def add(self, error: LogError, batch: memoryview, *, compacted: bool) -> None:
        """Counts a batch that was refused as corrupt or invalid. Batches refused with other errors are not counted."""
        if isinstance(error, CorruptRecord):
            self.checksum += 1
        elif not isinstance(error, InvalidRecord):
            return
        elif len(batch) > MAGIC and batch[MAGIC] != CURRENT_MAGIC:
            self.format += 1
        elif compacted and error.faults:
            self.key += 1
        else:
            self.other += 1


class AppendTotals:
    """Counts since the start, including requests for partitions that this node does not hold: `batches` sent, the `failed`
    ones among them, and the `refused` ones by rule."""

    __slots__ = ("batches", "failed", "refused")

    def __init__(self) -> None:
        self.batches = self.failed = 0
        self.refused = RefusedBatches()


class PartitionCounts:
    """`appends` counts batches sent to the partition, `fetches` counts requests for it, and `failed_*` counts those answered
    with an error. `rejected_bytes` are the bytes of batches that were too large. `cold_*` counts answers from the bucket,
    `offloads` counts offloaded segments, `deletes` counts objects deleted from the bucket."""

    __slots__ = (
        "appends",
        "cold_bytes",
        "cold_failures",
        "cold_reads",
        "deletes",
        "failed_appends",
        "failed_deletes",
        "failed_fetches",
        "failed_offloads",
        "fetches",
        "offloaded_bytes",
        "offloads",
        "rejected_bytes",
    )

    def __init__(self) -> None:
        self.appends = self.failed_appends = self.rejected_bytes = 0
        self.fetches = self.failed_fetches = 0
        self.cold_reads = self.cold_bytes = self.cold_failures = 0
        self.offloads = self.offloaded_bytes = self.failed_offloads = 0
        self.deletes = self.failed_deletes = 0

    def add(self, other: PartitionCounts) -> None:
        for name in PartitionCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
