"""Counters of a node's shards since its start: plain numbers, which outlive each shard, for metrics.

Pure. A shard adds to them when it decides; what a shard that is dropped had decided, and could not write, is counted too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounts:
    """Offsets that were committed, also in transactions; that requests deleted; whose retention was over; and rebalances that
    ended with an assignment."""

    commits: int = 0
    deletions: int = 0
    expirations: int = 0
    rebalances: int = 0


@dataclass(slots=True)
class TransactionCounts:
    """Transactions that ended either way. Two subsets of `aborted`: `timed_out` took too long, and `fenced` were left open by
    the producer before."""

    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    fenced: int = 0

    def ended(self, *, commit: bool) -> None:
        if commit:
            self.committed += 1
        else:
            self.aborted += 1
