"""Reads the body of an object that is about to be stored, in bounded pieces. The body is bytes in memory or a range of a local
file.

A file's bytes are compared with the CRC-32C that its owner computed when it wrote them, so that no damage by the disk or in
memory is copied into an object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from crc32c import crc32c

from storage_tiers.cold.stores.port import MAX_PIECE_BYTES, FileBody, Sink
from storage_tiers.errors import StorageError, TierCorrupt


def body_length(body: bytes | FileBody) -> int:
    return body.length if isinstance(body, FileBody) else len(body)


def pieces(body: bytes | FileBody, size: int) -> Iterator[bytes]:
    """The body in pieces of `size` bytes, the last one shorter; at least one, which may be empty.

    A file is verified before its last piece is yielded: `TierCorrupt` if its bytes do not match `crc32c`, `StorageError` if
    it cannot be read or ends early.
    """
    if isinstance(body, FileBody):
        yield from _file_pieces(body, size)
        return
    yield body[:size]
    for start in range(size, len(body), size):
        yield body[start : start + size]


def whole(body: bytes | FileBody) -> bytes:
    """The whole body in memory; the caller bounds its length."""
    return body if isinstance(body, bytes) else b"".join(pieces(body, max(body.length, 1)))


def hand_over(data: bytes | memoryview, sink: Sink) -> None:
    """Passes bytes to `sink` in pieces of at most MAX_PIECE_BYTES, as `ObjectStore.get_into` requires."""
    view = memoryview(data)
    for start in range(0, len(view), MAX_PIECE_BYTES):
        sink(view[start : start + MAX_PIECE_BYTES])


def _file_pieces(body: FileBody, size: int) -> Iterator[bytes]:
    try:
        fd = os.open(body.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"cannot read {body.path} to upload it: {error.strerror}") from error
    try:
        checksum, done = 0, 0
        while True:
            data = _read_exactly(fd, body, done, min(size, body.length - done))
            checksum = crc32c(data, checksum)
            done += len(data)
            if done == body.length and checksum != body.crc32c:
                raise TierCorrupt(
                    f"{body.path} [{body.position}, {body.position + body.length}) has CRC-32C {checksum:08x}, not "
                    f"{body.crc32c:08x} as when it was written; it is not uploaded; put the file back from a copy"
                )
            yield data
            if done == body.length:
                return
    finally:
        os.close(fd)


def _read_exactly(fd: int, body: FileBody, done: int, size: int) -> bytes:
    found: list[bytes] = []
    missing = size
    while missing:
        try:
            data = os.pread(fd, missing, body.position + done + size - missing)
        except OSError as error:
            raise StorageError(f"cannot read {body.path} to upload it: {error.strerror}") from error
        if not data:
            raise StorageError(f"cannot upload {body.path}: it ends before byte {body.position + body.length}")
        found.append(data)
        missing -= len(data)
    return found[0] if len(found) == 1 else b"".join(found)
