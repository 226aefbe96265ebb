"""Ends the wait for records that are not committed in time, for example when a disk hangs or followers lag."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class CommitTimeout:
    """`overdue(n)` is called when the answers to the shard's first `n` records have waited too long. Without a timeout, answers
    wait until their records are committed. At most one timer runs, and none while nothing waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_ms: int | None, overdue: Callable[[int], None]) -> None:
        self._loop = loop
        self._timeout_ms = timeout_ms
        self._overdue = overdue
        #: For each batch, the loop's time at which it is overdue, and the shard's `written` after it.
        self._batches: deque[tuple[float, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def appended(self, through: int) -> None:
        """Starts the wait for the batch that ends with the shard's record number `through`."""
        if self._timeout_ms is None:
            return
        self._batches.append((self._loop.time() + self._timeout_ms / 1000, through))
        self._plan()

    def covers(self, through: int) -> bool:
        """Whether the wait for the shard's first `through` records will end, if only by the timeout."""
        return self._timeout_ms is None or (bool(self._batches) and self._batches[-1][1] >= through)

    def committed(self, through: int) -> None:
        while self._batches and self._batches[0][1] <= through:
            self._batches.popleft()

    def clear(self) -> None:
        """Forgets all batches and stops the timer."""
        self._batches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._timer is None and self._batches:
            self._timer = self._loop.call_at(self._batches[0][0], self._report_overdue)

    def _report_overdue(self) -> None:
        self._timer = None
        now_s, through = self._loop.time(), -1
        while self._batches and self._batches[0][0] <= now_s:
            through = self._batches.popleft()[1]
        self._plan()
        if through >= 0:
            self._overdue(through)
