"""An object store that counts requests for bills and metrics: calls by kind, failures by kind and error, bytes both ways.

A multipart upload counts as its requests: one per part, one to begin, one to complete. A listing counts as one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from storage_tiers.cold.stores.port import (
    MULTIPART_THRESHOLD,
    PART_BYTES,
    FileBody,
    ObjectBody,
    ObjectInfo,
    ObjectStore,
    Sink,
    UnfinishedUpload,
)
from storage_tiers.errors import LogError

Found = TypeVar("Found")


class CountingStore:
    """Passes all calls through. Counts calls when they are made, bytes when they have arrived."""

    def __init__(self, store: ObjectStore, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._store = store
        self._now = seconds
        self.calls: Counter[str] = Counter()
        #: Failed calls by kind and error, as in `get TierUnavailable`.
        self.failures: Counter[str] = Counter()
        #: Ended calls by kind, and in `seconds` their total time.
        self.ended: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.bytes_downloaded = 0
        self.bytes_uploaded = 0

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        size = body.length if isinstance(body, FileBody) else len(body)
        self.calls["put"] += 1 if size <= MULTIPART_THRESHOLD else -(-size // PART_BYTES) + 2
        with self._failing("put"):
            info = await self._store.put(key, body, if_absent=if_absent, if_match=if_match)
        self.bytes_uploaded += size
        return info

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        self.calls["get"] += 1
        with self._failing("get"):
            body = await self._store.get(key, start, length)
        self.bytes_downloaded += len(body.data)
        return body

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        def counted(piece: bytes | memoryview) -> None:
            self.bytes_downloaded += len(piece)
            sink(piece)

        self.calls["get"] += 1
        with self._failing("get"):
            await self._store.get_into(key, start, length, counted)

    async def head(self, key: str) -> ObjectInfo:
        self.calls["head"] += 1
        with self._failing("head"):
            return await self._store.head(key)

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        self.calls["list"] += 1
        return self._listing(self._store.list(prefix, start_after=start_after))

    async def list_folders(self, prefix: str) -> Sequence[str]:
        self.calls["list"] += 1
        with self._failing("list"):
            return await self._store.list_folders(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        self.calls["delete"] += 1
        with self._failing("delete"):
            await self._store.delete(keys)

    def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        self.calls["list"] += 1
        return self._listing(self._store.unfinished_uploads(prefix))

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        self.calls["abort"] += 1
        with self._failing("abort"):
            await self._store.abort_upload(upload)

    async def _listing(self, found: AsyncIterator[Found]) -> AsyncIterator[Found]:
        with self._failing("list"):
            async for item in found:
                yield item

    @contextmanager
    def _failing(self, call: str) -> Iterator[None]:
        began = self._now()
        try:
            yield
        except LogError as error:
            self.failures[f"{call} {type(error).__name__}"] += 1
            raise
        finally:
            self.ended[call] += 1
            self.seconds[call] = self.seconds.get(call, 0.0) + self._now() - began

    async def close(self) -> None:
        await self._store.close()
