"""A partition's loss of its newest records, as it stays known until nothing more follows from it: no group has committed an
offset above the log's end, and no transaction that lost records is open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RecoveredEnd:
    """Where a log ended after it had lost its newest records. Two losses are never equal, also if they end at one offset."""

    offset: int
    #: Partitions of `__consumer_offsets` in which committed offsets have been lowered to it.
    lowered_in: frozenset[int] = frozenset()
    #: Partitions of `__transaction_state` in which the transactions that it concerns have been ended.
    settled_in: frozenset[int] = frozenset()
    #: Whether the note says so, and whether a checkpoint of all logs' ends was written since: by an older one, the next start
    #: after a crash would find the same loss again, and after a power loss none of records that were written meanwhile.
    is_noted: bool = True
    is_checkpointed: bool = False

    def note_lowered(self, lowered_in: frozenset[int]) -> None:
        self.lowered_in = lowered_in
        self.is_noted = self.is_checkpointed = False

    def note_settled(self, settled_in: frozenset[int]) -> None:
        self.settled_in = settled_in
        self.is_noted = self.is_checkpointed = False
