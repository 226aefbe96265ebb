"""The batches of a shard that are in its log and not committed yet.

After a stalled disk or a load, tens of thousands of records may become committed at once. They are reported some hundreds at a
time, for at most SLICE_S of a turn of the loop. Invariants: `committed` is called with rising counts, each the number of the
shard's first records that are committed. Nothing is reported after a batch that failed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from storage_tiers.errors import LogError
from storage_tiers.turns import SLICE_S, TurnScheduler

#: Records that are reported between two checks of the clock, each in a microsecond or less.
COMMITTED_AT_ONCE = 500


class UncommittedBatches:
    """Reports to `committed` how far the shard's records are committed, in the order of the log."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scheduler: TurnScheduler,
        committed: Callable[[int], None],
        failed: Callable[[LogError], None],
    ) -> None:
        """`failed` receives the error of the first batch that cannot be committed. It must call `begin_at`."""
        self._loop = loop
        self._scheduler = scheduler
        self._committed = committed
        self._failed = failed
        #: The shard's `written` after each batch, and the batch's future. The deque is never replaced.
        self.batches: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: The number of the shard's records that were reported.
        self._reported = 0
        self._is_planned = False

    def begin_at(self, reported: int) -> None:
        """Forgets all batches. The first `reported` records of the shard are committed."""
        self.batches.clear()
        self._reported = reported

    def add(self, through: int, committed: asyncio.Future[None] | None) -> None:
        """Adds a batch: the shard's first `through` records are in the log. They are committed when the future is done, or
        already if it is None."""
        if committed is None and not self.batches and through <= self._reported + COMMITTED_AT_ONCE:
            self._report(through)
            return
        if committed is None:
            committed = self._loop.create_future()
            committed.set_result(None)
        self.batches.append((through, committed))
        committed.add_done_callback(self._settle)

    def _settle(self, _: asyncio.Future[None]) -> None:
        if not self._is_planned:
            self._go_on()

    def _go_on(self) -> None:
        self._is_planned = False
        until = self._scheduler.seconds() + SLICE_S
        while self.batches and self.batches[0][1].done():
            through, done = self.batches[0]
            # A cancelled wait does not show whether its records are committed, so the log is read again.
            error = (
                CoordinatorNotAvailable("the wait for the commit was cancelled")
                if done.cancelled()
                else done.exception()
            )
            if error is not None:
                self._failed(error if isinstance(error, LogError) else CoordinatorNotAvailable(str(error)))
                return
            some = min(through, self._reported + COMMITTED_AT_ONCE)
            if some == through:
                self.batches.popleft()
            self._report(some)
            if self._scheduler.seconds() >= until:
                self._is_planned = True
                self._loop.call_soon(self._go_on)
                return

    def _report(self, through: int) -> None:
        self._reported = through
        self._committed(through)
