"""The bounded directory of verified chunks that the broker serves cold reads from, as it serves hot segments.

The tier process makes the files; only the broker removes them. Invariants: a chunk that another program has changed is never
served. Used bytes (known chunks, and removed chunks whose descriptor an answer still holds) plus reserved bytes never exceed
the limit. A chunk whose file is gone or was changed is a miss. The directory is emptied at every start, since its files are
only copies.

A chunk's bytes are verified before its file gets its final name, and never again: reading 4 MiB for each answer would cost more
than sending them. Instead its file's identity is noted when the chunk is added: inode, size, and the times of the last change
of contents and of the inode. No program can set the last of these, so one fstat before each answer detects a chunk that was
overwritten, truncated, replaced, removed or merely touched.

A chunk may be evicted at any time: a caller that plans an answer from one acquires its file in the same turn of the loop. An
answer whose chunk changes while it is sent is corrupt; the client detects that by the batches' own checksums.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

from storage_tiers import events
from storage_tiers.cold.process.settings import CHUNK_BYTES
from storage_tiers.errors import StorageError, TierUnavailable
from storage_tiers.types import SharedFile

log = logging.getLogger(__name__)

#: The most chunks whose descriptors stay open between answers. Other chunks are opened again when they are read.
MAX_OPEN_FILES = 256
#: The most open descriptors that are examined to find one to close.
MAX_LOOKED_AT = 8
#: The most chunks. Chunks of small segments are small files, so bytes alone do not bound their number.
MAX_CHUNKS = 16_384
#: The cache's share of its file system, unless its size is set.
DISK_SHARE = 0.1
#: The upper bound of that share, in bytes.
LARGEST_DEFAULT_BYTES = 1 << 30
#: The smallest useful size: a batch that straddles two chunks, and room to fetch more meanwhile.
LEAST_BYTES = 4 * CHUNK_BYTES
#: The size after the disk was full: two chunks still serve a batch that straddles them.
SHRUNK_BYTES = 2 * CHUNK_BYTES


class ChunkKey(NamedTuple):
    """A chunk of a remote segment: `position` is where the segment begins in its object, `number` counts chunks from there."""

    object_key: str
    position: int
    number: int


#: Inode, size, and when contents and inode were changed last (ns).
_Identity = tuple[int, int, int, int]


def _identity(found: os.stat_result) -> _Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class _CachedChunk:
    __slots__ = ("file", "identity", "path", "size", "unread")

    def __init__(self, path: str, size: int, identity: _Identity, unread: bool) -> None:
        self.path = path
        self.size = size
        self.identity = identity
        self.file: SharedFile | None = None
        self.unread = unread

    @property
    def in_use(self) -> bool:
        return self.file is not None and self.file.users > 1


def default_cache_bytes(directory: str) -> int:
    """A tenth of the file system that holds `directory`, but at least LEAST_BYTES and at most 1 GiB."""
    system = os.statvfs(directory)
    return max(LEAST_BYTES, min(LARGEST_DEFAULT_BYTES, int(system.f_blocks * system.f_frsize * DISK_SHARE)))


class ChunkCache:
    """Counters are plain ints: `evicted` chunks, and those of them that were read ahead and never read (`wasted`)."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        if max_bytes < LEAST_BYTES:
            raise ValueError(f"a chunk cache has at least {LEAST_BYTES} bytes, not {max_bytes}")
        self.directory = directory
        self._max_bytes = max_bytes
        self._limit = max_bytes
        self._chunks: OrderedDict[ChunkKey, _CachedChunk] = OrderedDict()
        self._open: OrderedDict[ChunkKey, SharedFile] = OrderedDict()
        self._known_bytes = 0
        self.reserved_bytes = 0
        self._leaving: list[tuple[SharedFile, int]] = []
        self.unread_bytes = 0
        self.evicted = self.wasted = 0
        os.makedirs(directory, exist_ok=True)
        self.remove_strays()

    @property
    def limit_bytes(self) -> int:
        """Bytes that the cache may hold now: its configured size, or less after the disk was full."""
        return self._limit

    @property
    def used_bytes(self) -> int:
        """Bytes of known chunks, and of removed ones whose space an answer still holds."""
        self._leaving = [(file, size) for file, size in self._leaving if file.fd >= 0]
        return self._known_bytes + sum(size for _, size in self._leaving)

    def __contains__(self, key: object) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, key: ChunkKey) -> SharedFile | None:
        """The chunk's open file, now the most recently used; None is a miss. The caller must acquire the file before its next
        `await`. TierUnavailable if no descriptor is free; the chunk stays in the cache."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return None
        file = chunk.file
        try:
            if file is None:
                file = self._opened(key, chunk)
            else:
                self._open.move_to_end(key)
            if _identity(os.fstat(file.fd)) != chunk.identity:
                self._lose(key, "it was changed, or removed")
                return None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise TierUnavailable(f"cannot open the cached chunk {chunk.path}: {error.strerror}; retry") from error
            self._lose(key, error.strerror or str(error))
            return None
        self._chunks.move_to_end(key)
        if chunk.unread:
            chunk.unread = False
            self.unread_bytes -= chunk.size
        return file

    # --- filling ------------------------------------------------------------------------------------------------------
    def reserve(self, size: int) -> bool:
        """Makes room for a chunk before it is fetched. False if answers and other reservations hold all the space."""
        self._make_room(size)
        if self.used_bytes + self.reserved_bytes + size > self._limit:
            return False
        self.reserved_bytes += size
        return True

    def unreserve(self, size: int) -> None:
        self.reserved_bytes -= size

    def add(self, key: ChunkKey, path: str, size: int, *, unread: bool) -> None:
        """Adds a chunk that the tier process has finished; the caller has ended its reservation. `unread`: the chunk was read
        ahead."""
        known = self._chunks.get(key)
        if known is not None:
            if known.path != path:
                _unlink(path)
            return
        try:
            identity = _identity(os.stat(path))
        except OSError as error:
            events.provoked(log, "cache.chunk_lost", by="", path=path, reason=error.strerror or str(error))
            return
        chunk = _CachedChunk(path, size, identity, unread)
        self._chunks[key] = chunk
        self._known_bytes += size
        self.unread_bytes += size if unread else 0
        self._limit = min(self._max_bytes, self._limit + size)

    def shrink(self) -> None:
        """Halves the used space because the disk is full. Each chunk added later raises the limit again by its size."""
        self._limit = max(SHRUNK_BYTES, min(self._limit, self.used_bytes) // 2)
        self._make_room(0)

    # --- removing -----------------------------------------------------------------------------------------------------
    def drop(self, key: ChunkKey) -> None:
        """Forgets a chunk whose object is gone or was replaced."""
        if key in self._chunks:
            self._forget(key)

    def _lose(self, key: ChunkKey, reason: str) -> None:
        """Forgets a chunk whose file another program has changed or removed; the next reader fetches it again."""
        events.provoked(log, "cache.chunk_lost", by="", path=self._chunks[key].path, reason=reason)
        self._forget(key)

    def discard(self, path: str) -> None:
        """Removes a file of the directory that is not a chunk; its content has been read into memory."""
        _unlink(path)

    def remove_strays(self) -> None:
        """Removes every file that is not a known chunk: all files at the start, later the files that an ended tier process did
        not announce."""
        known = {os.path.basename(chunk.path) for chunk in self._chunks.values()}
        try:
            os.makedirs(self.directory, exist_ok=True)
            for name in set(os.listdir(self.directory)) - known:
                try:
                    os.unlink(os.path.join(self.directory, name))
                except FileNotFoundError:
                    pass  # renamed by a tier process that outlived its broker for a moment
        except OSError as error:
            raise StorageError(f"cannot empty the cache directory {self.directory}: {error.strerror}") from error

    def close(self) -> None:
        """Releases every descriptor; answers under way keep theirs."""
        for file in self._open.values():
            file.release()
        self._open.clear()
        self._chunks.clear()
        self._known_bytes = self.unread_bytes = 0

    def _make_room(self, size: int) -> None:
        """Evicts the least recently used chunks that no answer holds: removing one in use would free nothing."""
        excess = self.used_bytes + self.reserved_bytes + size - self._limit
        too_many = len(self._chunks) - MAX_CHUNKS + 1
        doomed: list[ChunkKey] = []
        for key, chunk in self._chunks.items():
            if excess <= 0 and too_many <= 0:
                break
            if not chunk.in_use:
                doomed.append(key)
                excess -= chunk.size
                too_many -= 1
        for key in doomed:
            self.evicted += 1
            self.wasted += self._chunks[key].unread
            self._forget(key)

    def _forget(self, key: ChunkKey) -> None:
        chunk = self._chunks.pop(key)
        self._known_bytes -= chunk.size
        self.unread_bytes -= chunk.size if chunk.unread else 0
        _unlink(chunk.path)
        if chunk.file is not None:
            del self._open[key]
            if chunk.in_use:
                self._leaving.append((chunk.file, chunk.size))
            chunk.file.release()

    def _opened(self, key: ChunkKey, chunk: _CachedChunk) -> SharedFile:
        chunk.file = SharedFile.open(chunk.path)
        self._open[key] = chunk.file
        chunk.file.acquire()  # so that `_close_idle` keeps it open
        while len(self._open) > MAX_OPEN_FILES and self._close_idle():
            pass
        chunk.file.release()
        return chunk.file

    def _close_idle(self) -> bool:
        """Closes an idle file; False if there is none among the least recently used. A file that an answer holds stays open,
        because its space must continue to count as used. Such a file becomes the most recently used one, so that the next calls
        examine other files first."""
        for known in tuple(islice(self._open, MAX_LOOKED_AT)):
            if self._open[known].users == 1:
                self._chunks[known].file = None
                self._open.pop(known).release()
                return True
            self._open.move_to_end(known)
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
