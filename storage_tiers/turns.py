"""Shares the event loop between requests that take long and everybody else: work in slices, one slice a turn of the loop.

A request begins at once and most are done in the time that each may take so (FREE_S). One that is not goes on in slices of
SLICE_S: after each it rests until the loop has looked at all sockets, and all that rest take turns, so that a hundred of them
hold others up no longer than one does. At most AT_WORK of them are under way together, which bounds what they have read and
made in memory; the others begin in the order in which they came. A rest is where a request whose client has left ends.

Does not promise: anything about a step that never asks whether its turn is over.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")

#: Of a request's first step, which other requests of the same turn of the loop may also take.
FREE_S = 0.000_5
#: Of each further one.
SLICE_S = 0.002
#: Requests that have used up their first step and are not done.
AT_WORK = 8


class Lane:
    """Used on one event loop only. `seconds` tells the time."""

    def __init__(self, seconds: Callable[[], float] = time.perf_counter) -> None:  # noqa: TID251 - the shell
        self.seconds = seconds
        self._inside = 0
        self._entering: deque[asyncio.Future[None]] = deque()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    def turn(self, is_wanted: Callable[[], bool] = lambda: True) -> Turn:
        """For a request that begins now. Whoever takes it ends it with `leave`."""
        return Turn(self, is_wanted)

    @property
    def waiting(self) -> int:
        """Requests that wait for others to end before they go on."""
        return len(self._entering)

    async def enter(self) -> None:
        if self._inside < AT_WORK:
            self._inside += 1
            return
        entry: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._entering.append(entry)
        try:
            await entry
        except asyncio.CancelledError:
            if not entry.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._entering:
            entry = self._entering.popleft()
            if not entry.done():
                entry.set_result(None)
                return
        self._inside -= 1

    async def rest(self) -> None:
        """Until it is the caller's turn again."""
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


class Turn:
    """One request's share of the loop."""

    __slots__ = ("_has_entered", "_is_wanted", "_lane", "_until")

    def __init__(self, lane: Lane, is_wanted: Callable[[], bool]) -> None:
        self._lane = lane
        self._is_wanted = is_wanted
        self._has_entered = False
        self._until = lane.seconds() + FREE_S

    @property
    def is_over(self) -> bool:
        """Whether it is time to rest."""
        return self._lane.seconds() >= self._until

    async def rest(self) -> None:
        """Lets others have the loop. Raises CancelledError where nobody wants the answer any more."""
        if not self._has_entered:
            await self._lane.enter()
            self._has_entered = True
        await self._lane.rest()
        if not self._is_wanted():
            raise asyncio.CancelledError("who asked has left")
        self._until = self._lane.seconds() + SLICE_S

    async def rest_if_over(self) -> None:
        if self.is_over:
            await self.rest()

    async def through(self, steps: Generator[None, None, Result]) -> Result:
        """What the steps end with, with rests between them."""
        try:
            while True:
                next(steps)
                if self.is_over:
                    await self.rest()
        except StopIteration as end:
            result: Result = end.value
            return result

    def leave(self) -> None:
        """Nothing more is done, or not until something else has happened."""
        if self._has_entered:
            self._has_entered = False
            self._lane.leave()
