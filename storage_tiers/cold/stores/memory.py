"""An object store in this process's memory, for demos and embedded use, and for unit tests.

Invariants: it fulfils the contract of the port. `etag` is the MD5 of the content, as in S3, so equal contents have equal etags.
The asynchronous interface yields to the event loop before each effect, so that concurrent writers do race. Objects above
MULTIPART_THRESHOLD arrive in parts and are listed as an unfinished upload meanwhile.

Objects are lost with the process, and other processes do not see them. Memory is bounded by the caller alone.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from storage_tiers.clock import Clock
from storage_tiers.cold.stores.bodies import body_length, hand_over, pieces, whole
from storage_tiers.cold.stores.port import (
    MULTIPART_THRESHOLD,
    PART_BYTES,
    FileBody,
    ObjectBody,
    ObjectInfo,
    Sink,
    UnfinishedUpload,
    check_key,
    check_put,
    next_folder,
)
from storage_tiers.errors import PreconditionFailed, TierObjectMissing, TierUnavailable


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    info: ObjectInfo


class BlockingMemoryStore:
    """The objects themselves. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._keys: list[str] = []  # sorted
        self._uploads: dict[str, UnfinishedUpload] = {}
        self._uploads_begun = 0

    def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_put(key, if_absent, if_match)
        data = whole(body)
        info = ObjectInfo(
            key, len(data), hashlib.md5(data, usedforsecurity=False).hexdigest(), self._clock.unix_ms(), crc32c(data)
        )
        with self._lock:
            present = self._objects.get(key)
            if if_absent and present is not None:
                raise PreconditionFailed(f"object {key} exists already")
            if if_match is not None and (present is None or present.info.etag != if_match):
                raise PreconditionFailed(f"object {key} is no longer the expected version")
            if present is None:
                bisect.insort(self._keys, key)
            self._objects[key] = _Object(data, info)
        return info

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        found = self._find(key)
        end = found.info.size if length is None else start + length
        return ObjectBody(found.data[start:end], found.info.etag)

    def head(self, key: str) -> ObjectInfo:
        return self._find(key).info

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        last = start_after
        with self._lock:
            index = max(bisect.bisect_left(self._keys, prefix), bisect.bisect_right(self._keys, last))
        while True:
            with self._lock:
                if index >= len(self._keys) or not self._keys[index].startswith(prefix):
                    return
                info = self._objects[self._keys[index]].info
            yield info
            with self._lock:  # keys may have come and gone while the caller held `info`
                index = bisect.bisect_right(self._keys, info.key)

    def list_folders(self, prefix: str) -> Sequence[str]:
        names = (next_folder(info.key, prefix) for info in self.list(prefix))
        return list(dict.fromkeys(name for name in names if name is not None))

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect.bisect_left(self._keys, key)]

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        with self._lock:
            uploads = sorted(self._uploads.values(), key=lambda upload: (upload.key, upload.upload_id))
        return (upload for upload in uploads if upload.key.startswith(prefix))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        with self._lock:
            self._uploads.pop(upload.upload_id, None)

    def close(self) -> None:
        """Keeps the objects: the store can be opened again."""

    def begin_upload(self, key: str) -> UnfinishedUpload:
        """Begins an upload in parts. It stays listed until it is completed or aborted."""
        check_key(key)
        with self._lock:
            self._uploads_begun += 1
            upload = UnfinishedUpload(key, f"upload-{self._uploads_begun:08}", self._clock.unix_ms())
            self._uploads[upload.upload_id] = upload
        return upload

    def complete_upload(
        self, upload: UnfinishedUpload, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        with self._lock:
            begun = self._uploads.pop(upload.upload_id, None)
        if begun is None:
            raise TierUnavailable(f"the upload of {upload.key} was aborted meanwhile; upload it again")
        return self.put(upload.key, data, if_absent=if_absent, if_match=if_match)

    def _find(self, key: str) -> _Object:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise TierObjectMissing(f"object {key} does not exist")
        return found


class MemoryStore:
    """The asynchronous interface. `blocking()` gives code without an event loop the same objects."""

    def __init__(self, clock: Clock) -> None:
        self._objects = BlockingMemoryStore(clock)

    def blocking(self) -> BlockingMemoryStore:
        return self._objects

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_put(key, if_absent, if_match)
        if body_length(body) > MULTIPART_THRESHOLD:
            return await self._put_in_parts(key, body, if_absent, if_match)
        await asyncio.sleep(0)
        return self._objects.put(key, body, if_absent=if_absent, if_match=if_match)

    async def _put_in_parts(
        self, key: str, body: bytes | FileBody, if_absent: bool, if_match: str | None
    ) -> ObjectInfo:
        upload = self._objects.begin_upload(key)
        try:
            parts: list[bytes] = []
            for part in pieces(body, PART_BYTES):
                parts.append(part)
                await asyncio.sleep(0)
            return self._objects.complete_upload(upload, b"".join(parts), if_absent=if_absent, if_match=if_match)
        finally:
            self._objects.abort_upload(upload)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        await asyncio.sleep(0)
        return self._objects.get(key, start, length)

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        await asyncio.sleep(0)
        hand_over(self._objects.get(key, start, length).data, sink)

    async def head(self, key: str) -> ObjectInfo:
        await asyncio.sleep(0)
        return self._objects.head(key)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await asyncio.sleep(0)
        for info in self._objects.list(prefix, start_after=start_after):
            yield info

    async def list_folders(self, prefix: str) -> Sequence[str]:
        await asyncio.sleep(0)
        return self._objects.list_folders(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.sleep(0)
        self._objects.delete(keys)

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        await asyncio.sleep(0)
        for upload in self._objects.unfinished_uploads(prefix):
            yield upload

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        await asyncio.sleep(0)
        self._objects.abort_upload(upload)

    async def close(self) -> None:
        """Keeps the objects."""
