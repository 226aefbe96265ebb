"""Whose turn it is in rounds that may end early.

Invariant: whoever a round ended with comes last in the next one. So what one of them costs, or breaks, never keeps the
others from their turn for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    def __init__(self) -> None:
        self._last: T | None = None

    def of(self, items: Sequence[T]) -> Iterator[T]:
        """Each once, from the one behind the last that had a turn."""
        at = next((place for place, item in enumerate(items, 1) if item is self._last), 0)
        for item in (*items[at:], *items[:at]):
            self._last = item
            yield item
