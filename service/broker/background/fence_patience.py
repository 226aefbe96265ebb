"""Decides whether a refused write to the bucket ends a broker whose controller is in another process.

The controller marks the manifests of a deleted topic as deleted, under the incarnation of its own last start. A broker that was
paused meanwhile may still write to such a manifest. The write is refused, and the metadata shows the reason a moment later. So
the broker waits. It ends only if its writes are refused for PATIENCE_S and the metadata shows no other incarnation: then the
cluster was taken over, and this broker must acknowledge no further record.

Pure: times are seconds of one monotonic clock. A broker that does not write to the bucket does not end.
"""

from __future__ import annotations

from storage_tiers.errors import FencedWriter, LogError

#: Seconds of refusals after which the broker ends.
PATIENCE_S = 10.0
#: Refusals further apart than this many seconds are counted separately.
APART_S = 5.0


class FencePatience:
    """The latest run of refusals: under one incarnation, and at most APART_S apart."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._first_s = self._last_s = float("-inf")

    def ends_broker(self, error: LogError, incarnation: int, now_s: float) -> bool:
        """Whether an error with the advice STOP ends the broker at `now_s`. `incarnation` is the one in the metadata."""
        if not isinstance(error, FencedWriter):
            return True
        if incarnation != self._incarnation or now_s - self._last_s > APART_S:
            self._incarnation, self._first_s = incarnation, now_s
        self._last_s = now_s
        return now_s - self._first_s >= PATIENCE_S
