"""Finds partitions in which a follower has reached an open transaction. Without a report they look idle.

Committed records end at the last stable offset. The follower compares it with the high watermark of each Fetch response, so it
sends no request before a partition is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from service.cli.client import silence
from service.cli.client.positions import PartitionKey


class HeldBack:
    """A partition is held back if its committed records end below the high watermark, and at the same offset, at two looks
    that are `SILENCE_S` apart. So short transactions are not reported. Each offset of a partition is found once. `now` returns
    seconds of a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = now() + silence.SILENCE_S
        self._seen: dict[PartitionKey, int] = {}
        self._found: dict[PartitionKey, int] = {}

    def due(self) -> bool:
        return self._now() >= self._next_at

    def look(self, ends: Mapping[PartitionKey, int], high: Mapping[PartitionKey, int]) -> Mapping[PartitionKey, int]:
        """`ends` are the offsets at which the partitions' committed records ended, `high` their high watermarks. Returns the
        offsets of the held-back partitions that were not found at that offset before."""
        self._next_at = self._now() + silence.SILENCE_S
        held = {key: end for key, end in ends.items() if high.get(key, end) > end}
        found = {key: end for key, end in held.items() if self._seen.get(key) == end and self._found.get(key) != end}
        self._seen = held
        self._found.update(found)
        return found

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """The next look finds these partitions again if they are still held back."""
        for key in keys:
            self._found.pop(key, None)
