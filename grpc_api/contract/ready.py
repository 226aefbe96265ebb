"""`Ready[T]`: an answer that is usually known at once."""

from __future__ import annotations

import asyncio
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: A value, or a future of it where the answer must wait (replication, fsync, long poll, a cold read).
Ready: TypeAlias = T | asyncio.Future[T]


async def settled(ready: Ready[T]) -> T:
    """Waits for the value if necessary. For callers that are coroutines anyway."""
    if isinstance(ready, asyncio.Future):
        return await ready
    return ready
