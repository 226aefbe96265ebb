"""Keeps the committed view of a group or a transactional id for readers while it has uncommitted records.

Pure. A view is kept when a record is passed to the runtime, and dropped when that record is committed. So a name without a
pending record costs nothing. Invariant: readers see a name as it was before its oldest pending record, however many follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

View = TypeVar("View")


class CommittedViews(Generic[View]):
    """The views by name. A view of None means that readers do not see the name. `record_number` counts the records of the
    shard."""

    __slots__ = ("_record_numbers", "_views")

    def __init__(self) -> None:
        self._views: dict[str, deque[View | None]] = {}
        #: The pending records, oldest first.
        self._record_numbers: deque[tuple[int, str]] = deque()

    def keep(self, name: str, view: View | None, record_number: int) -> None:
        """Keeps `view`, which the name's record with this number replaces. Numbers must rise."""
        self._views.setdefault(name, deque()).append(view)
        self._record_numbers.append((record_number, name))

    def commit(self, written: int) -> None:
        """Drops the views that are replaced by committed records, that is, by records with numbers below `written`."""
        record_numbers = self._record_numbers
        while record_numbers and record_numbers[0][0] < written:
            name = record_numbers.popleft()[1]
            views = self._views[name]
            views.popleft()
            if not views:
                del self._views[name]

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __getitem__(self, name: str) -> View | None:
        """The view of a name that has a pending record."""
        return self._views[name][0]

    def __iter__(self) -> Iterator[str]:
        """The names that have a pending record."""
        return iter(tuple(self._views))


def names_of(known: Mapping[str, object], views: CommittedViews[View]) -> tuple[str, ...]:
    """Every name once: the known names, and those that only readers still see. Only the names are copied, because a shard may
    have hundreds of thousands, and the copy is one step of the event loop."""
    return (*known, *(name for name in views if name not in known))
