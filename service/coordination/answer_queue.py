"""Answers waiting requests, a share in each turn of the loop: a rebalance answers thousands of members at once, and a separate
callback writes each answer.

It also has Python's collector examine the new objects a few at a time. An answer frees what its request kept, and brings the
member's next request, which keeps as much. The collector counts both against each other, so it would wait until all members
have asked, and then examine what thousands of requests keep: 7 ms.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.errors import LogError

#: Answers of one outcome that are given at once, and in each turn of the loop after that.
ANSWERS_A_TURN = 8
#: Answers after which new objects are examined, and the generation that they belong to at most.
ANSWERS_A_COLLECTION, YOUNG = 32, 1


class FailedRequest(NamedTuple):
    """Instead of an answer: the request ends with this error."""

    error: LogError


class AnswerQueue:
    """A few answers are given at once: a heartbeat gets its answer in its own turn and does not wait for a rebalance."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[object, object]] = deque()
        #: Since the last collection.
        self._given = 0

    def answers(self, answers: Sequence[tuple[object, object]]) -> None:
        """Pairs of a waiter, which is a future, and its answer or `FailedRequest`. A waiter that was cancelled gets none."""
        if len(answers) <= ANSWERS_A_TURN:
            for waiter, answer in answers:
                give(waiter, answer)
            return
        if not self._queue:
            self._loop.call_soon(self._go_on)
        self._queue.extend(answers)

    def _go_on(self) -> None:
        count = min(ANSWERS_A_TURN, len(self._queue))
        for _ in range(count):
            give(*self._queue.popleft())
        self._given += count
        if self._given >= ANSWERS_A_COLLECTION:
            self._given = 0
            gc.collect(YOUNG)
        if self._queue:
            self._loop.call_soon(self._go_on)


def give(waiter: object, answer: object) -> None:
    """As `AnswerQueue.answers`, of one pair."""
    assert isinstance(waiter, asyncio.Future)
    if waiter.done():
        return
    if isinstance(answer, FailedRequest):
        waiter.set_exception(answer.error)
    else:
        waiter.set_result(answer)
