"""Walks over all partitions of a node: in slices that delay no request, and in a fair order if a round may end early.

Invariant: the item with which a round ended comes last in the next one. So a slow or failing item never starves the others.
An item of a later slice may not exist any longer, because other tasks run between two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

#: Partitions that are checked in one turn of the event loop, if each check takes 5 to 50 µs.
LOOKS_A_TURN = 64
#: The same if each check only compares a few numbers.
GLANCES_A_TURN = 1000


async def slices(items: Iterable[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yields the items in order, at most `size` at a time. Between two slices the event loop runs other tasks."""
    left = iter(items)
    slice_ = tuple(islice(left, size))
    while slice_:
        yield slice_
        slice_ = tuple(islice(left, size))
        if slice_:
            await asyncio.sleep(0)


class Turns(Generic[T]):
    """The order of rounds that may end early: each begins after the item with which the last one ended."""

    def __init__(self) -> None:
        self._last: T | None = None

    def of(self, items: Sequence[T]) -> Iterator[T]:
        """Each item once, starting after the last one that had a turn."""
        at = next((index for index, item in enumerate(items, 1) if item is self._last), 0)
        for item in (*items[at:], *items[:at]):
            self._last = item
            yield item
