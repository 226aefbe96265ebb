"""A partition's loss of its newest records, as it stays known until no group has a committed offset above the log's end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class RecoveredEnd:
    """Where a log ended after it had lost its newest records. Two losses are never equal, also if they end at one offset."""

    offset: int
    #: Partitions of `__consumer_offsets` in which committed offsets have been lowered to it.
    lowered_in: frozenset[int] = frozenset()
    #: Whether the note says so.
    is_noted: bool = True
