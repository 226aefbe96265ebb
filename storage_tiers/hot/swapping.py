"""Swaps closed segments of an open log for a rewritten one, one swap at a time: the part that runs on the event loop.

Invariant: a swap begins only if the log still has exactly the segments that were rewritten, and takes effect only if nothing
has changed them since. `swap` has the steps on disk.

A swap that the disk refuses in the middle of its renames leaves the log unusable: close it then.
"""

from __future__ import annotations

from storage_tiers.errors import StorageError
from storage_tiers.hot.append_counts import AppendCounts
from storage_tiers.hot.durability import Durability
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.segments import Segments
from storage_tiers.hot.swap import RewrittenSegment, SegmentSwap


class Swapping:
    """`swap` is the last swap that began; None before the first."""

    __slots__ = ("_counts", "_durability", "_ground", "_segments", "swap")

    def __init__(self, segments: Segments, durability: Durability, counts: AppendCounts, ground: LogGround) -> None:
        self._segments = segments
        self._durability = durability
        self._counts = counts
        self._ground = ground
        self.swap: SegmentSwap | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a swap has begun and not ended."""
        return self.swap is not None and not self.swap.is_ended

    def begin(self, new: RewrittenSegment) -> SegmentSwap | None:
        """Begins a swap of closed segments for a rewritten one, whose files lie beside them. None if the log has changed since
        they were read. Then call the swap's `prepare` in any thread, `finish` here, and its `commit` in any thread."""
        old = self._segments.exactly(new.replaces, new.end)
        if self.is_under_way or not old or any(segment in self._durability.pending for segment in old):
            return None
        self.swap = SegmentSwap(self._ground.files, self._ground.directory, new)
        return self.swap

    def finish(self, swap: SegmentSwap, new: RewrittenSegment) -> bool:
        """Swaps the segments; False if anything else has changed the log since `begin`. StorageError if the disk refuses:
        close the log then."""
        old = self._segments.exactly(new.replaces, new.end)
        appended = self._counts.current
        try:
            if swap is not self.swap or not old or not swap.rename():
                return False
        except OSError as error:
            raise StorageError(
                f"{self._ground.partition}: cannot swap segments ({error}); repair or replace the disk, then restart the node"
            ) from error
        segment = self._segments.make(new.base)
        segment.take_over(old[0], size=new.size, end=new.end, newest=new.newest, has_transactions=new.has_transactions)
        self._segments.swap(old, segment)
        self._durability.snapshots.forget(swap.bases[1:])
        self._counts.set(*appended)
        return True

    def end(self) -> None:
        """Ends the swap under way, if there is one, because another change of the log must not find it half done.
        StorageError if the disk refuses."""
        if self.swap is not None:
            try:
                self.swap.end()
            except OSError as error:
                raise StorageError(
                    f"{self._ground.partition}: cannot end a swap of segments ({error}); repair or replace the disk"
                ) from error
