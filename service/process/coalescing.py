"""Coalesces concurrent requests of a process's HTTP clients for the same result, so that many of them need the memory of one.

A failure goes to all current requests and is not kept. Only the number of requests bounds the number of keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Coalesced(Generic[Key, Result]):
    """The results that are being made, by key. Call it on one event loop."""

    def __init__(self) -> None:
        self._making: dict[Key, asyncio.Future[Result]] = {}

    async def made(self, key: Key, making: Callable[[], Awaitable[Result]]) -> Result:
        """Returns the result of that key. It is completed even if all its requests are cancelled."""
        future = self._making.get(key)
        if future is None:
            future = self._making[key] = asyncio.ensure_future(making())
            future.add_done_callback(lambda _: self._making.pop(key))
        return await asyncio.shield(future)
