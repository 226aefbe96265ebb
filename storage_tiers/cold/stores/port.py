"""The port to an object store: the operations of S3 that tidelog needs, and nothing more.

There are two thin ports with one conformance suite (`tests/conformance/object_store.py`): `ObjectStore` for the tier process
(asyncio), `BlockingObjectStore` for Spark, Lambdas and tools. All code above the ports is pure or uses only the ports.

Every store must guarantee: a read after a write sees that write; a conditional write either takes effect or raises
`PreconditionFailed`; exactly one of several racing conditional writes on one key takes effect; a partial object is never
visible. After `TierUnavailable` it is unknown whether the write took effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from storage_tiers.errors import StoreRefused

#: Objects above this size are uploaded in parts of `PART_BYTES`.
MULTIPART_THRESHOLD = 16 << 20
PART_BYTES = 8 << 20
#: The largest piece that `get_into` hands over. Larger blocks cost more to allocate than to copy.
MAX_PIECE_BYTES = 256 << 10
#: S3's own bound on a key, prefix included, in bytes of UTF-8.
MAX_KEY_BYTES = 1024


#: Receives the next bytes of an object, on the reader's event loop, and never after the read has ended or was cancelled.
Sink = Callable[[bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`etag` is opaque; `modified_ms` is by the store's clock; `crc32c` is the checksum that the store itself reports, or
    None."""

    key: str
    size: int
    etag: str
    modified_ms: int
    crc32c: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """The bytes read, and the ETag of the version that they belong to."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class FileBody:
    """Bytes [position, position + length) of a local file, read in bounded pieces while they are sent. `crc32c` was computed
    when they were written."""

    path: str
    position: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that is neither completed nor aborted. `started_ms` is by the store's clock."""

    key: str
    upload_id: str
    started_ms: int


class ObjectStore(Protocol):
    """Keys are relative to the store's prefix. Errors: `TierObjectMissing`, `PreconditionFailed`, `StoreRefused`
    (denied, no such bucket), `TierUnavailable` (temporary failures). A `FileBody` whose bytes do not match its checksum raises
    `TierCorrupt`, an unreadable one `StorageError`; neither leaves an object."""

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Stores one object, in parts above MULTIPART_THRESHOLD. Conditional writes are sent once, never retried."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        """Bytes [start, start + length), fewer if the object ends earlier; `length` None reads to its end."""

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        """Passes the bytes that `get` would return (`length` at least 1) to `sink` on arrival, in order, in pieces of at most
        MAX_PIECE_BYTES. An error of `sink` ends the read. After a failure `sink` has received a part of the bytes."""

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """All keys under `prefix` (a plain string prefix), in key order."""

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """The distinct next path components below `prefix` (which is empty or ends in `/`), in order."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes keys. A missing key is not an error."""

    def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]: ...

    async def abort_upload(self, upload: UnfinishedUpload) -> None: ...

    async def close(self) -> None: ...


class BlockingObjectStore(Protocol):
    """The same contract without an event loop."""

    def put(self, key: str, body: bytes, *, if_absent: bool = False, if_match: str | None = None) -> ObjectInfo: ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody: ...

    def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]: ...

    def list_folders(self, prefix: str) -> Sequence[str]: ...

    def delete(self, keys: Sequence[str]) -> None: ...

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]: ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    """Refuses the keys that S3 refuses, in every store. StoreRefused if the key is empty, longer than MAX_KEY_BYTES, not valid
    Unicode, or contains a NUL."""
    if not key or "\0" in key:
        raise StoreRefused(f"{key!r} is not a key: a key is not empty and holds no NUL")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise StoreRefused(f"{key!r} is not a key: it is not valid Unicode") from error
    if size > MAX_KEY_BYTES:
        raise StoreRefused(f"a key has at most {MAX_KEY_BYTES} bytes, not {size}: {key[:80]}...")


def check_put(key: str, if_absent: bool, if_match: str | None) -> None:
    check_key(key)
    if if_absent and if_match is not None:
        raise StoreRefused(f"a write of {key} cannot require both an absent key and a certain version")


def next_folder(key: str, prefix: str) -> str | None:
    """The path component of `key` after `prefix`, or None if no folder follows."""
    name, slash, _ = key[len(prefix) :].partition("/")
    return name if slash else None
