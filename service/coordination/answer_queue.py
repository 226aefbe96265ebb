"""Answers waiting requests, a few in each turn of the loop, because a rebalance answers thousands of members at once, and a
separate callback writes each answer.

The queue also makes Python's garbage collector examine the new objects a few at a time. An answer frees the objects of its
request and triggers the member's next request, which allocates as many objects. The collector counts allocations minus
deallocations, so it would wait until all members have sent their next request, and then examine the objects of thousands of
requests for 7 ms.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.errors import LogError

#: An outcome with at most this many answers sends them at once. Answers of larger outcomes are queued, and each turn of the
#: loop sends this many.
ANSWERS_A_TURN = 8
#: The number of answers after which new objects are collected, and the oldest generation that is collected.
ANSWERS_A_COLLECTION, YOUNG = 32, 1


class FailedRequest(NamedTuple):
    """Replaces an answer: the request fails with this error."""

    error: LogError


class AnswerQueue:
    """Sends the answers of an outcome at once if they are few, so that a heartbeat is answered in its own turn and does not
    wait for a rebalance."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[object, object]] = deque()
        #: Answers since the last collection.
        self._given = 0

    def answers(self, answers: Sequence[tuple[object, object]]) -> None:
        """Sends answers, given as pairs of a waiter (a future) and its answer or `FailedRequest`. Cancelled waiters are
        skipped."""
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
    """Sends one answer, as `AnswerQueue.answers` does."""
    assert isinstance(waiter, asyncio.Future)
    if waiter.done():
        return
    if isinstance(answer, FailedRequest):
        waiter.set_exception(answer.error)
    else:
        waiter.set_result(answer)
