"""The newest entries of the metadata log, kept for brokers that follow it.

Pure. Invariants: the entries belong to one log, in order, without a gap. Their bytes stay within MAX_RECENT_BYTES, except that
the newest entry is always kept.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Most bytes of entries that are kept; a follower that is further behind gets a snapshot.
MAX_RECENT_BYTES = 2 << 20


class Entry(NamedTuple):
    """An entry: its offset in the log, its term, and an encoded MetadataBatch."""

    offset: int
    term: int
    payload: bytes


class RecentEntries:
    """`offset` and `term` are those of the last entry before the first kept entry; both are 0 if there is none."""

    def __init__(self, offset: int, term: int) -> None:
        self._base = (offset, term)
        self._entries: deque[Entry] = deque()
        self._bytes = 0

    @property
    def end(self) -> tuple[int, int]:
        """Offset and term of the newest entry."""
        return self._entries[-1][:2] if self._entries else self._base

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += len(entry.payload)
        while self._bytes > MAX_RECENT_BYTES and len(self._entries) > 1:
            oldest = self._entries.popleft()
            self._base = oldest[:2]
            self._bytes -= len(oldest.payload)

    def after(self, offset: int, term: int) -> list[Entry] | None:
        """Returns the entries after the entry with this offset and term; None if that entry is too old or not in this log."""
        if (offset, term) == self._base:
            return list(self._entries)
        first = offset - self._base[0] - 1
        if not 0 <= first < len(self._entries) or self._entries[first][:2] != (offset, term):
            return None
        return [self._entries[nth] for nth in range(first + 1, len(self._entries))]
