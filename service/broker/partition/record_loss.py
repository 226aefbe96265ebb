"""A partition's loss of its newest records. The loss is remembered until no group has a committed offset above the log end that
it left, and no transaction that lost records is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class RecoveredEnd:
    """Where a log ended after it had lost its newest records. Two losses are never equal, even if their offsets are.

    `offset` is the lowest end of all losses for which some coordinator has not lowered its offsets yet."""

    offset: int
    #: Partitions of `__consumer_offsets` in which committed offsets have been lowered to this end.
    lowered_in: frozenset[int] = frozenset()
    #: Partitions of `__transaction_state` in which the transactions that lost records have been ended.
    settled_in: frozenset[int] = frozenset()
    #: Whether the note on disk has both sets, and whether the checkpoints were written after the last change of the sets. With
    #: older checkpoints, the start after a crash would find the same loss again. The start after a power failure would miss the
    #: loss of records that were written after those checkpoints.
    is_noted: bool = True
    is_checkpointed: bool = False
    #: Higher ends by coordinator, for coordinators that had lowered their offsets for an earlier loss. Offsets that they
    #: committed since are valid up to the end of the later loss.
    later_ends: Mapping[int, int] = field(default_factory=dict)

    def end_for(self, coordinator: int) -> int:
        """The end to which the coordinator of this partition of `__consumer_offsets` has to lower its offsets."""
        return self.later_ends.get(coordinator, self.offset)

    def note_lowered(self, lowered_in: frozenset[int]) -> None:
        self.lowered_in = lowered_in
        self.is_noted = self.is_checkpointed = False

    def note_settled(self, settled_in: frozenset[int]) -> None:
        self.settled_in = settled_in
        self.is_noted = self.is_checkpointed = False


def lost_again(earlier: RecoveredEnd | None, end: int) -> RecoveredEnd:
    """The loss of a log that ends at `end`, after an `earlier` loss that is not fully settled. A coordinator that has not
    lowered its offsets for the earlier loss lowers them to the lower of both ends. The others lower theirs to the end of
    the later loss."""
    if earlier is None:
        return RecoveredEnd(end)
    offset = min(earlier.offset, end)
    known = {each: min(before, end) for each, before in earlier.later_ends.items()}
    known.update(dict.fromkeys(earlier.lowered_in, end))
    return RecoveredEnd(offset, later_ends={each: least for each, least in known.items() if least > offset})
