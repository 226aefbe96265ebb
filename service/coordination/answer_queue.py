"""Gives requests that wait their answers, a share in each turn of the loop: a rebalance answers thousands of members at once,
and each answer is written by a callback of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.errors import LogError

#: Answers of one outcome that are given at once, and in each turn of the loop after that.
ANSWERS_A_TURN = 8


class FailedRequest(NamedTuple):
    """Instead of an answer: the request ends with this error."""

    error: LogError


class AnswerQueue:
    """Few answers are given at once, so that a heartbeat is answered in its own turn and does not wait for a rebalance."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[tuple[object, object]] = deque()

    def answers(self, answers: Sequence[tuple[object, object]]) -> None:
        """Pairs of a waiter, which is a future, and its answer or `FailedRequest`. A waiter that was cancelled gets none."""
        if len(answers) <= ANSWERS_A_TURN:
            for waiter, answer in answers:
                _give(waiter, answer)
            return
        if not self._queue:
            self._loop.call_soon(self._go_on)
        self._queue.extend(answers)

    def _go_on(self) -> None:
        for _ in range(min(ANSWERS_A_TURN, len(self._queue))):
            _give(*self._queue.popleft())
        if self._queue:
            self._loop.call_soon(self._go_on)


def _give(waiter: object, answer: object) -> None:
    assert isinstance(waiter, asyncio.Future)
    if waiter.done():
        return
    if isinstance(answer, FailedRequest):
        waiter.set_exception(answer.error)
    else:
        waiter.set_result(answer)
