"""Reads file slices for a message: from the page cache at once, from a disk in a thread, so the loop never waits for a disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence

from storage_tiers.errors import StorageError
from storage_tiers.types import FileSlice

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
#: Errors of a file system that cannot probe its cache without blocking.
_CANNOT_PROBE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


async def read_slices(slices: Sequence[FileSlice]) -> bytes:
    """The slices joined. The caller keeps their files open meanwhile. Raises StorageError if the disk fails."""
    try:
        parts = [await _read(piece) for piece in slices]
    except OSError as error:
        raise StorageError(f"cannot read {slices[0].file.path} ({error}); repair or replace the disk") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read(piece: FileSlice) -> bytes:
    last = piece.position + piece.length - 1
    if _in_memory(piece.file.fd, last) and _in_memory(piece.file.fd, piece.position):
        data = os.pread(piece.file.fd, piece.length, piece.position)
    else:
        data = await asyncio.to_thread(os.pread, piece.file.fd, piece.length, piece.position)
    if len(data) != piece.length:
        raise StorageError(f"{piece.file.path} ends before byte {last + 1}; another program has changed it")
    return data


def _in_memory(fd: int, position: int) -> bool:
    try:
        return os.preadv(fd, (bytearray(1),), position, _NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _CANNOT_PROBE:
            return True
        raise
