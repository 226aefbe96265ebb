"""The futures of a blocking producer's records. Threads wait for them, and the loop's thread ends them.

Invariant: all handles of a producer share one condition, and a handle gets its result only while that condition is held
(`RecordHandles.ending`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import contextmanager
from typing import Any

from grpc_api.sdk.values import Sent


class RecordHandles:
    """The handles of one producer. They share a condition, because a lock per record would cost more than sending it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.to_call: list[RecordHandle] = []

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Set results of handles inside this block. Callbacks run after it, without the condition held."""
        with self.condition:
            yield
            self.condition.notify_all()
            called, self.to_call = self.to_call, []
        for handle in called:
            handle.call_back()


class RecordHandle(Future[Sent]):
    """A record's future for threads. It works with `wait` and `as_completed`, but cannot be cancelled."""

    _state = RUNNING
    _result = None
    _exception = None

    def __init__(self, handles: RecordHandles) -> None:
        # Replaces `Future.__init__`, which would create a condition; the class has the initial values of other attributes.
        self._handles = handles
        self._condition = handles.condition
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[Sent]], object]] = []

    def set_result(self, result: Sent) -> None:
        """Call it with the condition held."""
        self._result = result
        self._state = FINISHED
        for waiter in self._waiters:
            waiter.add_result(self)
        if self._done_callbacks:
            self._handles.to_call.append(self)

    def set_exception(self, exception: BaseException | None) -> None:
        """Call it with the condition held."""
        self._exception = exception
        self._state = FINISHED
        for waiter in self._waiters:
            waiter.add_exception(self)
        if self._done_callbacks:
            self._handles.to_call.append(self)

    def done(self) -> bool:
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Sent:
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait(timeout)
        return super().exception(0)

    def call_back(self) -> None:
        self._invoke_callbacks()  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> None:
        """Waits until this record is done. Other records' results wake it too, which `Future` would take for a timeout."""
        with self._condition:
            self._condition.wait_for(self.done, timeout)
