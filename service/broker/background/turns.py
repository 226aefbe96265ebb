"""Fair order for rounds that may end early.

Invariant: the item with which a round ended comes last in the next one. So a slow or failing item never starves the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    def __init__(self) -> None:
        self._last: T | None = None

    def of(self, items: Sequence[T]) -> Iterator[T]:
        """Each item once, starting after the last one that had a turn."""
        at = next((place for place, item in enumerate(items, 1) if item is self._last), 0)
        for item in (*items[at:], *items[:at]):
            self._last = item
            yield item
