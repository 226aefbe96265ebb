"""A blocking store under the asynchronous port, so that one conformance suite serves both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from storage_tiers.cold.stores.bodies import hand_over, whole
from storage_tiers.cold.stores.port import (
    BlockingObjectStore,
    FileBody,
    ObjectBody,
    ObjectInfo,
    Sink,
    UnfinishedUpload,
)

T = TypeVar("T")


class BlockingAdapter:
    """Each call runs in a thread of its own, so that racing calls do race."""

    def __init__(self, blocking: BlockingObjectStore) -> None:
        self.blocking = blocking

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return await asyncio.to_thread(self.blocking.put, key, whole(body), if_absent=if_absent, if_match=if_match)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        return await asyncio.to_thread(self.blocking.get, key, start, length)

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        hand_over((await self.get(key, start, length)).data, sink)

    async def head(self, key: str) -> ObjectInfo:
        return await asyncio.to_thread(self.blocking.head, key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in await _all(lambda: tuple(self.blocking.list(prefix, start_after=start_after))):
            yield info

    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await asyncio.to_thread(self.blocking.list_folders, prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self.blocking.delete, keys)

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        for upload in await _all(lambda: tuple(self.blocking.unfinished_uploads(prefix))):
            yield upload

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        raise NotImplementedError("readers and tools never abort; the blocking port has no such call")

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)


async def _all(read: Callable[[], T]) -> T:
    return await asyncio.to_thread(read)
