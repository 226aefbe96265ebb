"""The reply of a handler to one request: an answer, or a delayed answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from kafka_gateway.connection import Piece

#: An answer's pieces (empty if the request has no answer), or a coroutine that makes them in a task.
Made = Sequence[Piece] | Coroutine[Any, Any, Sequence[Piece]]


class DelayedReply(NamedTuple):
    """An answer that is made when `future` ends: `finish` makes it from the result, `refuse` from the exception.

    A large answer is made in a coroutine. `future` is cancelled when the client disconnects. If it has already ended, `finish`
    is still called and the answer is released unsent.
    """

    future: asyncio.Future[Any]
    finish: Callable[[Any], Made]
    refuse: Callable[[BaseException], Made]


class CloseConnection(Exception):
    """Kafka answers this request by closing the connection."""


Reply = Made | DelayedReply


class Handler(Protocol):
    """Handles one API. `data[start:end]` is the request after its correlation id, valid until `handle` returns; `view` is a
    view of `data`. Raises Malformed or CloseConnection to close the connection. `errors` counts the answered error codes."""

    errors: Counter[int]

    def handle(
        self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int
    ) -> Reply: ...
