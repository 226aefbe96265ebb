"""Partitions that a follower has read up to an open transaction: without a report they look idle.

Committed records end at the last stable offset. The high watermark of each Fetch is compared with it, so no request is sent
before a partition is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from service.cli.client import silence
from service.cli.client.positions import PartitionKey


class HeldBack:
    """Finds the partitions whose committed records end at one offset below the high watermark at two looks, `SILENCE_S`
    apart, so that short transactions are not reported. Each offset of a partition is found once. `now` returns seconds of a
    monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = now() + silence.SILENCE_S
        self._seen: dict[PartitionKey, int] = {}
        self._found: dict[PartitionKey, int] = {}

    def due(self) -> bool:
        return self._now() >= self._next_at

    def look(self, ends: Mapping[PartitionKey, int], high: Mapping[PartitionKey, int]) -> Mapping[PartitionKey, int]:
        """`ends` are the offsets at which the reading of partitions ended, `high` their high watermarks. Returns the offsets
        of the partitions that are held back and were not found there before."""
        self._next_at = self._now() + silence.SILENCE_S
        held = {key: end for key, end in ends.items() if high.get(key, end) > end}
        found = {key: end for key, end in held.items() if self._seen.get(key) == end and self._found.get(key) != end}
        self._seen = held
        self._found.update(found)
        return found

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """They are found again, if they are still held back at the next look."""
        for key in keys:
            self._found.pop(key, None)
