"""Shares the event loop between long requests and all others: long work runs in slices, one slice per turn of the loop.

Most requests finish within their first slice (FREE_S). Requests that run as tasks begin in order of arrival. Each turn of the
loop begins at least one of these, and no further ones after SLICE_S: otherwise hundreds that arrive together would hold the
loop for a slice each. A longer request continues in slices of SLICE_S. After each slice the request rests until the loop has
served all sockets. Resting requests take turns, so a hundred of them delay others no longer than one does. At most AT_WORK long
requests are in progress, which bounds their memory; the others start in order of arrival. Small requests have as many slots of
their own: a garbage collection or another process may use up a small request's first slice, and such a request must not wait
behind hundreds of large ones. A request whose client has left ends at its next rest. Short steps that are due together share
one slice (`soon`).

A step that never checks whether its turn is over delays all others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")

#: Seconds of a request's first slice.
FREE_S = 0.000_5
#: Seconds of each further slice.
SLICE_S = 0.002
#: The most unfinished requests that have used up their first slice. Small and large requests are counted apart.
AT_WORK = 8
#: The most requests woken in one turn of the loop to check whether there is time for their first slice.
BEGIN_A_TURN = 32
#: Requests of at most this many bytes are small.
SMALL_BYTES = 1 << 10


class TurnScheduler:
    """The long requests of one event loop. `seconds` returns the current time in seconds."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:  # noqa: TID251 - the shell
        self.seconds = seconds
        self._large, self._small = _Entrance(), _Entrance()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False
        #: The time until which first slices may begin in this turn of the loop; None until a request asks in this turn.
        self._begins_until: float | None = None
        self._has_planned = False
        #: Requests that wait for their first slice. `_late` holds those that were woken too late in a turn: they come first.
        self._beginning: deque[asyncio.Future[None]] = deque()
        self._late: deque[asyncio.Future[None]] = deque()
        self._steps: deque[Callable[[], None]] = deque()

    def turn(self, is_wanted: Callable[[], bool] = lambda: True, size: int = SMALL_BYTES + 1) -> Turn:
        """A new `Turn` for a request of `size` bytes whose processing starts now. The caller ends it with `leave`."""
        return Turn(self, self._small if size <= SMALL_BYTES else self._large, is_wanted)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for others to finish before they continue."""
        return len(self._large.entering) + len(self._small.entering)

    def soon(self, step: Callable[[], None]) -> None:
        """Calls `step` in one of the next turns of the loop. Steps are called in order and share one slice in each turn,
        because thousands may be due together."""
        self._steps.append(step)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._call_steps)

    def _call_steps(self) -> None:
        until = self.seconds() + SLICE_S
        try:
            while self._steps:
                # The step stays in the queue while it runs, so that a step which it adds does not schedule a second call.
                self._steps[0]()
                self._steps.popleft()
                if self.seconds() >= until:
                    break
        except BaseException:
            self._steps.popleft()
            raise
        finally:
            if self._steps:
                asyncio.get_running_loop().call_soon(self._call_steps)

    async def begin(self) -> None:
        """Returns in a turn of the loop that has time for another first slice."""
        if not self._beginning and not self._late and self._may_begin():
            return
        queue = self._beginning
        while True:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(waiter)
            await waiter
            if self._may_begin():
                return
            queue = self._late

    def _may_begin(self) -> bool:
        """The first request that asks in a turn of the loop may begin, whatever the clock says: each turn begins at least
        one."""
        if self._begins_until is not None:
            return self.seconds() < self._begins_until
        self._begins_until = self.seconds() + SLICE_S
        self._plan_beginnings()
        return True

    def _plan_beginnings(self) -> None:
        if not self._has_planned:
            self._has_planned = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        """Wakes up to BEGIN_A_TURN waiting requests. If more wait, also schedules the next turn, because all requests woken
        here may be cancelled before they ask for their slice."""
        self._has_planned, self._begins_until = False, None
        for _ in range(min(BEGIN_A_TURN, len(self._late) + len(self._beginning))):
            waiter = (self._late or self._beginning).popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._late or self._beginning:
            self._plan_beginnings()

    async def rest(self) -> None:
        """Waits until it is the caller's turn again."""
        loop = asyncio.get_running_loop()
        rest: asyncio.Future[None] = loop.create_future()
        self._resting.append(rest)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._wake)
        await rest

    def _wake(self) -> None:
        self._is_scheduled = False
        while self._resting:
            rest = self._resting.popleft()
            if not rest.done():
                rest.set_result(None)
                break
        if self._resting:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)


class _Entrance:
    """Lets AT_WORK requests in; the others wait in order of arrival."""

    def __init__(self) -> None:
        self._inside = 0
        self.entering: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if self._inside < AT_WORK:
            self._inside += 1
            return
        entry: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entering.append(entry)
        try:
            await entry
        except asyncio.CancelledError:
            if not entry.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self.entering:
            entry = self.entering.popleft()
            if not entry.done():
                entry.set_result(None)
                return
        self._inside -= 1


class Turn:
    """One request's right to run on the loop, in slices; not a turn of the loop. `is_wanted` tells whether its client still
    waits."""

    __slots__ = ("_entrance", "_has_entered", "_is_wanted", "_scheduler", "_until")

    def __init__(self, scheduler: TurnScheduler, entrance: _Entrance, is_wanted: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._entrance = entrance
        self._is_wanted = is_wanted
        self._has_entered = False
        self._until = scheduler.seconds() + FREE_S

    @property
    def is_over(self) -> bool:
        """Whether it is time to rest."""
        return self._scheduler.seconds() >= self._until

    async def begin(self) -> None:
        """Called when the request continues as a task. Its first slice is still to come, unless it was used up."""
        await self._scheduler.begin()
        self.resume()

    def resume(self) -> None:
        """Called when the request continues after a wait, in which others used the loop. Unless the request has used up its
        first slice, it gets a full one again, and does not wait for long requests."""
        if not self._has_entered:
            self._until = self._scheduler.seconds() + FREE_S

    async def rest(self) -> None:
        """Yields the loop to others. Raises CancelledError if the client has left."""
        if not self._has_entered:
            await self._entrance.enter()
            self._has_entered = True
        await self._scheduler.rest()
        if not self._is_wanted():
            raise asyncio.CancelledError("the client has left")
        self._until = self._scheduler.seconds() + SLICE_S

    async def rest_if_over(self) -> None:
        if self.is_over:
            await self.rest()

    async def through(self, steps: Generator[None, None, Result]) -> Result:
        """Runs the steps, with rests between them, and returns their result."""
        try:
            while True:
                next(steps)
                if self.is_over:
                    await self.rest()
        except StopIteration as end:
            result: Result = end.value
            return result

    def leave(self) -> None:
        """Ends the turn, or suspends it while the request waits for something else."""
        if self._has_entered:
            self._has_entered = False
            self._entrance.leave()
