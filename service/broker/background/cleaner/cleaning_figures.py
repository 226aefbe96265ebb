"""The log cleaner's finished and remaining work: plain numbers for metrics, in Kafka's terms.

Counters begin at the node's start. `last` is the last pass over one log. `dirtiest_ratio` and `overdue_ms` come from the last
scan of all logs, including those that were not due.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_tiers.compaction.batches import Cleaned
from storage_tiers.compaction.offset_map import SLOT_BYTES
from storage_tiers.policy.compaction import CleaningPlan


@dataclass(slots=True)
class CleanedBytes:
    """Passes over one tier's logs, and bytes of batches that they read and wrote."""

    passes: int = 0
    read: int = 0
    written: int = 0


@dataclass(slots=True)
class LastCleaning:
    """The last pass; all 0 before the first. `buffer_share` is the share of `log.cleaner.dedupe.buffer.size` that its keys
    took, 0 to 1."""

    ms: int = 0
    counted: Cleaned = field(default_factory=Cleaned)
    buffer_share: float = 0.0


@dataclass(slots=True)
class CleaningFigures:
    """`looked_ms` is the steady time of the last scan of all logs; before the first scan, it is the time of the node's
    start."""

    looked_ms: int
    #: The keys are the tiers' names in events.
    done: dict[str, CleanedBytes] = field(default_factory=lambda: {"local": CleanedBytes(), "bucket": CleanedBytes()})
    last: LastCleaning = field(default_factory=LastCleaning)
    dirtiest_ratio: float = 0.0
    overdue_ms: int = 0

    def look(self, now_ms: int) -> None:
        """Starts a new scan of all logs; `found` is called for each dirty one."""
        self.looked_ms = now_ms
        self.dirtiest_ratio, self.overdue_ms = 0.0, 0

    def found(self, plan: CleaningPlan) -> None:
        self.dirtiest_ratio = max(self.dirtiest_ratio, plan.dirty_ratio)
        self.overdue_ms = max(self.overdue_ms, plan.overdue_ms)

    def cleaned(self, tier: str, counted: Cleaned, ms: int, map_bytes: int) -> None:
        done = self.done[tier]
        done.passes += 1
        done.read += counted.bytes_read
        done.written += counted.bytes_written
        self.last = LastCleaning(ms, counted, counted.keys * SLOT_BYTES / max(1, map_bytes))
