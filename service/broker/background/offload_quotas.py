"""Limits the bytes that this broker offloads in a second: all of them (KIP-405's copy quota, KIP-956), and those of
partitions that move to another broker (KIP-73's throttle of a leader). Pure: times are seconds of one monotonic clock.

An object is stored in one request, so an offload has no rate of its own. Instead, the next offload waits until the earlier ones
are paid off at the permitted rate. Kafka forgets a segment after a window of 11 s, so that a segment of 1 GiB passes a quota of
1 MB/s in 11 s; here that segment delays the next offload for 18 minutes.

Invariant: in the long run no more bytes are offloaded than the rate permits. The rate within a segment is not limited. The last
bytes of a held log are counted but not delayed, because its clients wait.
"""

from __future__ import annotations

from collections.abc import Callable

#: The longest delay in seconds before a caller asks again. A new rate acts within this time.
LONGEST_DELAY_S = 1.0


class ByteRate:
    """`rate` returns the permitted bytes a second; 0 permits none."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        #: Bytes that were offloaded and are not paid off yet.
        self._owed = 0.0
        self._paid_at = 0.0

    def count(self, size: int, now: float) -> None:
        self._pay(now)
        self._owed += size

    def delay_s(self, now: float) -> float:
        """Seconds to wait before asking again. 0: the next offload may begin."""
        self._pay(now)
        rate = self._rate()
        if rate == 0:
            return LONGEST_DELAY_S
        if self._owed < 1:  # the delay of a fraction of a byte may be too short to advance a floating-point clock
            return 0.0
        return min(LONGEST_DELAY_S, self._owed / rate)

    def _pay(self, now: float) -> None:
        paid = (now - self._paid_at) * self._rate()
        self._owed, self._paid_at = max(0.0, self._owed - paid), now


class OffloadQuotas:
    """`offloads` is the rate of all offloads, `moves` the rate of offloads of moving partitions."""

    def __init__(self, offloads: Callable[[], int], moves: Callable[[], int]) -> None:
        self._offloads = ByteRate(offloads)
        self._moves = ByteRate(moves)

    def delay_s(self, now: float, *, moves: bool) -> float:
        """Seconds to wait before asking again. 0: the partition's next offload may begin. `moves`: the partition moves away."""
        return max(self._offloads.delay_s(now), self._moves.delay_s(now) if moves else 0.0)

    def count(self, size: int, now: float, *, moves: bool) -> None:
        """Counts an offload of `size` bytes, which begins now."""
        self._offloads.count(size, now)
        if moves:
            self._moves.count(size, now)
