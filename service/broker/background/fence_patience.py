"""Whether a refused write to the bucket ends a broker whose controller is in another process.

The controller changes manifests of partitions that this broker leads: it deletes those of a deleted topic, under the
incarnation of its own last start. A broker that was paused meanwhile is refused there, and learns the reason a moment later
from the metadata. So it waits, and ends only if it is refused for PATIENCE_S without learning of another incarnation: the
cluster was taken over, and this broker must acknowledge no further record.

Pure: times are seconds of one monotonic clock. Not promised: that a broker without work in the bucket ends.
"""

from __future__ import annotations

from storage_tiers.errors import FencedWriter, LogError

#: Seconds of refusals after which the broker ends.
PATIENCE_S = 10.0
#: Refusals further apart than this many seconds are counted separately.
APART_S = 5.0


class FencePatience:
    """The refusals since the last change of the incarnation."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._first_s = self._last_s = float("-inf")

    def ends_broker(self, error: LogError, incarnation: int, now_s: float) -> bool:
        """Notes an error with the advice STOP at `now_s`, while the metadata show that incarnation of the cluster."""
        if not isinstance(error, FencedWriter):
            return True
        if incarnation != self._incarnation or now_s - self._last_s > APART_S:
            self._incarnation, self._first_s = incarnation, now_s
        self._last_s = now_s
        return now_s - self._first_s >= PATIENCE_S
