"""Counters of a node's shards since its start: plain numbers, which outlive each shard, for metrics.

Pure. A shard counts its decisions when it makes them, including those that it cannot write before it is dropped. It
counts a planned commit once the commit is written.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounts:
    """Offsets committed (also in transactions), deleted by requests, and expired; and rebalances that ended with an
    assignment."""

    commits: int = 0
    deletions: int = 0
    expirations: int = 0
    rebalances: int = 0


@dataclass(slots=True)
class TransactionCounts:
    """Transactions that were committed or aborted. Two subsets of `aborted`: `timed_out` transactions exceeded their timeout,
    and `fenced` ones were left open by a previous producer."""

    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    fenced: int = 0

    def ended(self, *, commit: bool) -> None:
        if commit:
            self.committed += 1
        else:
            self.aborted += 1
