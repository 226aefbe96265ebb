"""Finds partitions in which a follower has reached an open transaction. Without a report, such partitions look idle.

Committed records end at the last stable offset. The follower compares that offset with the high watermark of each Fetch
response, and sends no request before a partition is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from service.cli.client import silence
from service.cli.client.positions import PartitionKey


class HeldBack:
    """A partition is held back if two calls of `look`, `SILENCE_S` apart, find that its committed records end at the same
    offset, below the high watermark. Short transactions are therefore not reported. Each offset of a partition is returned
    once. `now` returns seconds of a monotonic clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = now() + silence.SILENCE_S
        self._seen: dict[PartitionKey, int] = {}
        self._found: dict[PartitionKey, int] = {}

    def due(self) -> bool:
        return self._now() >= self._next_at

    def look(self, ends: Mapping[PartitionKey, int], high: Mapping[PartitionKey, int]) -> Mapping[PartitionKey, int]:
        """`ends` are the offsets at which the partitions' committed records ended, `high` their high watermarks. Returns the
        held-back partitions that were not returned with the same offset before."""
        self._next_at = self._now() + silence.SILENCE_S
        held = {key: end for key, end in ends.items() if high.get(key, end) > end}
        found = {key: end for key, end in held.items() if self._seen.get(key) == end and self._found.get(key) != end}
        self._seen = held
        self._found.update(found)
        return found

    def forget(self, keys: Iterable[PartitionKey]) -> None:
        """Lets the next `look` return these partitions again if they are still held back."""
        for key in keys:
            self._found.pop(key, None)
