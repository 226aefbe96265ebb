"""Recognises sequential readers by their accesses, and says how far ahead of each to fetch. Pure.

A *stream* stands for a reader, and is positioned on one chunk. An access to the next chunk moves the stream there and doubles
its window. An access anywhere else starts another stream without a window. So many readers of one partition do not disturb
each other, and a random read costs one chunk.

Two readers on one chunk share a window until the first moves on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from storage_tiers.cold.process.settings import CHUNK_BYTES

#: The widest window. Sixteen chunks keep sixteen connections busy.
MAX_WINDOW_BYTES = 16 * CHUNK_BYTES
#: Maximum number of readers of one partition that are distinguished.
MAX_STREAMS = 16

Chunk = TypeVar("Chunk", bound=Hashable)


class ReadAhead(Generic[Chunk]):
    """Streams of one partition. Chunks are opaque names; only the caller knows which one follows which."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: OrderedDict[Chunk, int] = OrderedDict()

    def accessed(self, chunk: Chunk, before: Chunk | None) -> int | None:
        """The window in bytes from `chunk` on if a stream moved there from `before`; None if there is nothing new to fetch."""
        if chunk in self._streams:
            self._streams.move_to_end(chunk)
            return None
        window = self._streams.pop(before, None) if before is not None else None
        wider = 0 if window is None else min(max(2 * window, CHUNK_BYTES), MAX_WINDOW_BYTES)
        self._streams[chunk] = wider
        if len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return wider or None
