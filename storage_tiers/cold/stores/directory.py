"""An object store in a local directory, shared by any number of processes: several nodes, Spark readers, tools.

Invariants. An object is one file, written under a temporary name, fsynced, and only then given its name: readers see the
whole old object or the whole new one, even after a power loss. Creating (`if_absent`) is link(2), which fails if the name
exists. Every other change of a key happens under an flock, so that comparing and replacing (`if_match`) are one step for all
processes. An ETag is the file's modification time, inode and size; every replacement raises the time, so that no two versions
of a key are confused. A temporary file left by a dead writer is an unfinished upload.

The file system must order link, rename and fsync as POSIX does. Other programs may read the files under the root, but must not
change them. Listings have no `crc32c`; `head` reads the file to compute it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

from crc32c import crc32c

from storage_tiers.clock import Rng, SystemRng
from storage_tiers.cold.stores.bodies import hand_over, pieces
from storage_tiers.cold.stores.directory_names import (
    LOCKS,
    folder_name,
    object_path,
    parse_file,
    parse_folder,
    upload_path,
)
from storage_tiers.cold.stores.port import FileBody, ObjectBody, ObjectInfo, Sink, UnfinishedUpload, check_put
from storage_tiers.errors import PreconditionFailed, StoreRefused, TierObjectMissing, TierUnavailable
from storage_tiers.files import Files

#: Files are written and checksummed in pieces of this many bytes.
COPY_BYTES = 1 << 20
#: Threads of the asynchronous interface: the most disk operations that it runs at a time.
THREADS = 4
#: Lock files: keys share them by hash, so that their number stays bounded and none is ever unlinked.
LOCK_FILES = 64
#: How long a change waits for another process on the same lock: 6,000 tries 5 ms apart.
LOCK_TRIES = 6_000
LOCK_PAUSE_SECONDS = 0.005
#: Attempts of a writer to create directories that other processes remove with the last object in them.
MAKE_TRIES = 16
#: Entries handed from the listing thread to the event loop at a time.
LIST_BATCH = 1_000

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EOPNOTSUPP)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)

T = TypeVar("T")


class BlockingDirectoryStore:
    """The store itself. Thread-safe if `files` is."""

    def __init__(self, root: str, files: Files, rng: Rng | None = None) -> None:
        self._root = os.path.abspath(root)
        self._files = files
        self._rng = rng or SystemRng()

    def create_root(self) -> None:
        """Creates the root directory and its missing parents, durably."""
        with self._explained("create"):
            missing = [self._root]
            while not os.path.isdir(missing[-1]):
                missing.append(os.path.dirname(missing[-1]))
            for path in reversed(missing[:-1]):
                self._files.mkdir(path)
                self._files.fsync_dir(os.path.dirname(path))

    def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        check_put(key, if_absent, if_match)
        path = object_path(self._root, key)
        if if_absent and os.path.exists(path):
            raise PreconditionFailed(f"object {key} exists already")
        temporary = upload_path(self._root, key, self._rng.token(8).hex())
        with self._explained(f"write {key}"):
            fd = self._create_file(temporary)
            try:
                checksum = self._write(fd, body)
                self._set_unlike_time(fd)
                self._files.fsync(fd)
                self._publish(key, fd, temporary, path, if_absent, if_match)
                self._fsync_folders(path)
                return _info(key, os.fstat(fd), checksum)
            except BaseException:
                self._unlink_if_there(temporary)
                raise
            finally:
                self._files.close(fd)

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        with self._explained(f"read {key}"), self._opened(key) as fd:
            status = os.fstat(fd)
            end = status.st_size if length is None else min(start + length, status.st_size)
            return ObjectBody(_read(fd, start, end), _etag(status))

    def head(self, key: str) -> ObjectInfo:
        """Reads the whole object for its CRC-32C, which therefore describes the bytes on disk."""
        with self._explained(f"read {key}"), self._opened(key) as fd:
            status = os.fstat(fd)
            checksum, position = 0, 0
            while position < status.st_size:
                data = _read(fd, position, min(position + COPY_BYTES, status.st_size))
                checksum, position = crc32c(data, checksum), position + len(data)
            return _info(key, status, checksum)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for key, token, entry in self._walk(prefix, start_after):
            if token is None and key > start_after:
                try:
                    yield _info(key, entry.stat(), None)
                except FileNotFoundError:  # deleted since its directory was read
                    continue

    def list_folders(self, prefix: str) -> Sequence[str]:
        with self._explained("list objects"):
            self._check_root()
            return [
                key[len(prefix) : -1]
                for key, _, entry in _entries(self._folder_path(prefix), prefix)
                if entry.is_dir(follow_symlinks=False) and any(self.list(key))
            ]

    def delete(self, keys: Sequence[str]) -> None:
        folders: dict[str, None] = {}
        with self._explained("delete objects"):
            self._check_root()
            for key in keys:
                path = object_path(self._root, key)
                if not os.path.exists(path):
                    continue
                with self._locked(key):
                    self._unlink_if_there(path)
                folders[os.path.dirname(path)] = None
            for folder in folders:
                self._fsync_if_there(folder)
                self._remove_empty(folder)

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """`started_ms` is the time of the last write, so that an upload that still grows never looks abandoned."""
        for key, token, entry in self._walk(prefix, ""):
            if token is not None:
                try:
                    yield UnfinishedUpload(key, token, entry.stat().st_mtime_ns // 1_000_000)
                except FileNotFoundError:  # finished since its directory was read
                    continue

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        path = upload_path(self._root, upload.key, upload.upload_id)
        with self._explained(f"abort the upload of {upload.key}"):
            self._check_root()
            self._unlink_if_there(path)
            self._fsync_if_there(os.path.dirname(path))
            self._remove_empty(os.path.dirname(path))

    def close(self) -> None:
        """Nothing stays open between calls."""

    # --- writing ------------------------------------------------------------------------------------------------------
    def _create_file(self, path: str) -> int:
        for _ in range(MAKE_TRIES):
            try:
                return self._files.open(path, create=True, exclusive=True)
            except FileNotFoundError:
                self._make_folders(os.path.dirname(path))
        raise TierUnavailable(f"the directories of {path} vanish while they are created, or a file is in their place")

    def _make_folders(self, folder: str) -> None:
        self._check_root()
        parts = os.path.relpath(folder, self._root).split(os.sep)
        for depth in range(1, len(parts) + 1):
            try:
                self._files.mkdir(os.path.join(self._root, *parts[:depth]))
            except (FileNotFoundError, FileExistsError):
                # A concurrent delete removed a directory that was empty; the caller tries again.
                return

    def _write(self, fd: int, body: bytes | FileBody) -> int:
        checksum, position = 0, 0
        for piece in pieces(body, COPY_BYTES):
            self._files.pwrite(fd, (piece,), position)
            checksum, position = crc32c(piece, checksum), position + len(piece)
        return checksum

    def _set_unlike_time(self, fd: int) -> None:
        """Sets the low 20 bits (1 ms) of the modification time at random: the kernel's time advances in ticks of some
        milliseconds, and within one tick a key may be deleted and created again with the same inode and size."""
        status = os.fstat(fd)
        chance = int.from_bytes(self._rng.token(3), "big") & 0xFFFFF
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns & ~0xFFFFF | chance))

    def _publish(self, key: str, fd: int, temporary: str, path: str, if_absent: bool, if_match: str | None) -> None:
        try:
            if if_absent:
                self._files.link(temporary, path)
                self._files.unlink(temporary)
                return
            with self._locked(key):
                self._compare_and_rename(key, fd, temporary, path, if_match)
        except FileExistsError:
            raise PreconditionFailed(f"object {key} exists already") from None
        except FileNotFoundError:
            raise TierUnavailable(f"the upload of {key} was aborted meanwhile; upload it again") from None

    def _compare_and_rename(self, key: str, fd: int, temporary: str, path: str, if_match: str | None) -> None:
        try:
            present = os.stat(path)
        except FileNotFoundError:
            present = None
        if if_match is not None and (present is None or _etag(present) != if_match):
            raise PreconditionFailed(f"object {key} is no longer the expected version")
        if present is not None and os.fstat(fd).st_mtime_ns <= present.st_mtime_ns:
            # The clock may step back; two versions must not share a time.
            os.utime(fd, ns=(present.st_atime_ns, present.st_mtime_ns + 1))
        self._files.rename(temporary, path)

    def _fsync_folders(self, path: str) -> None:
        """Makes the names of the file and of all directories above it durable: any of them may be new, created by this process
        or by another process that has not synced it yet."""
        folder = os.path.dirname(path)
        while len(folder) >= len(self._root):
            self._files.fsync_dir(folder)
            folder = os.path.dirname(folder)

    def _remove_empty(self, folder: str) -> None:
        """Removes directories that are empty now: S3 has no directories, and a listing then has fewer to walk."""
        while len(folder) > len(self._root):
            try:
                self._files.rmdir(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                if error.errno != errno.ENOENT:
                    return
            folder = os.path.dirname(folder)

    def _unlink_if_there(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass

    def _fsync_if_there(self, folder: str) -> None:
        try:
            self._files.fsync_dir(folder)
        except FileNotFoundError:
            pass

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        self._files.mkdir(os.path.join(self._root, LOCKS))
        name = f"{zlib.crc32(key.encode()) % LOCK_FILES:02x}"
        fd = self._files.open(os.path.join(self._root, LOCKS, name), create=True)
        try:
            _lock(fd, key)
            yield
        finally:
            self._files.close(fd)

    # --- reading ------------------------------------------------------------------------------------------------------
    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        try:
            fd = os.open(object_path(self._root, key), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            self._check_root()
            raise TierObjectMissing(f"object {key} does not exist") from None
        try:
            yield fd
        finally:
            os.close(fd)

    def _walk(self, prefix: str, start_after: str) -> Iterator[tuple[str, str | None, os.DirEntry[str]]]:
        """(key, token of an unfinished upload, entry) under `prefix` in key order. Skips whole folders before `start_after`;
        the caller skips single keys."""
        with self._explained("list objects"):
            self._check_root()
            folder = prefix[: prefix.rfind("/") + 1]
            yield from self._walk_folder(self._folder_path(folder), folder, prefix, start_after)

    def _walk_folder(
        self, path: str, folder: str, prefix: str, start_after: str
    ) -> Iterator[tuple[str, str | None, os.DirEntry[str]]]:
        for key, token, entry in _entries(path, folder):
            if not key.startswith(prefix):
                continue
            if not key.endswith("/") or token is not None or not entry.is_dir(follow_symlinks=False):
                yield key, token, entry
            elif key > start_after or start_after.startswith(key):
                yield from self._walk_folder(entry.path, key, prefix, start_after)

    def _folder_path(self, folder: str) -> str:
        """The path of a folder of keys. `folder` is empty or ends in a slash."""
        return os.path.join(self._root, *map(folder_name, folder.split("/")[:-1]))

    def _check_root(self) -> None:
        if not os.path.isdir(self._root):
            raise StoreRefused(f"there is no directory {self._root}: create it, or correct the store's URL")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _DENIED:
                raise StoreRefused(
                    f"cannot {what} in {self._root}: {error.strerror}; give this user the right to"
                ) from error
            if error.errno in _ABSENT:
                self._check_root()
            raise TierUnavailable(f"cannot {what} in {self._root}: {error.strerror}") from error


class DirectoryStore:
    """The asynchronous interface: the same code on a few threads."""

    def __init__(self, root: str, files: Files, rng: Rng | None = None) -> None:
        self._store = BlockingDirectoryStore(root, files, rng)
        self._threads = ThreadPoolExecutor(THREADS, "directory-store")

    @classmethod
    async def create(cls, root: str, files: Files, rng: Rng | None = None) -> DirectoryStore:
        """Opens a store and creates its root directory if it is missing."""
        store = cls(root, files, rng)
        await store._run(store._store.create_root)
        return store

    def blocking(self) -> BlockingDirectoryStore:
        return self._store

    async def put(
        self, key: str, body: bytes | FileBody, *, if_absent: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return await self._run(lambda: self._store.put(key, body, if_absent=if_absent, if_match=if_match))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        return await self._run(lambda: self._store.get(key, start, length))

    async def get_into(self, key: str, start: int, length: int, sink: Sink) -> None:
        # Calls `sink` on the loop: a cancelled read does not stop its thread, which would then write to a closed file.
        hand_over((await self.get(key, start, length)).data, sink)

    async def head(self, key: str) -> ObjectInfo:
        return await self._run(lambda: self._store.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._stream(self._store.list(prefix, start_after=start_after)):
            yield info

    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await self._run(lambda: self._store.list_folders(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(lambda: self._store.delete(keys))

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        async for upload in self._stream(self._store.unfinished_uploads(prefix)):
            yield upload

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        await self._run(lambda: self._store.abort_upload(upload))

    async def close(self) -> None:
        """Waits for the operations under way."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _stream(self, source: Iterator[T]) -> AsyncIterator[T]:
        while batch := await self._run(lambda: tuple(islice(source, LIST_BATCH))):
            for item in batch:
                yield item


def _entries(path: str, folder: str) -> Sequence[tuple[str, str | None, os.DirEntry[str]]]:
    """Entries of one directory in the order of the keys they stand for; a folder's key ends in a slash."""
    try:
        with os.scandir(path) as entries:
            found = [each for entry in entries if (each := _entry(entry, folder)) is not None]
    except (FileNotFoundError, NotADirectoryError):  # removed since it was seen
        return ()
    found.sort(key=lambda item: (item[0], item[1] or ""))
    return found


def _entry(entry: os.DirEntry[str], folder: str) -> tuple[str, str | None, os.DirEntry[str]] | None:
    """(key, token, entry) of a directory entry; None for a name that this store never gives."""
    if entry.is_dir(follow_symlinks=False):
        component = parse_folder(entry.name)
        return None if component is None else (f"{folder}{component}/", None, entry)
    parsed = parse_file(entry.name)
    return None if parsed is None else (folder + parsed.component, parsed.token, entry)


def _lock(fd: int, key: str) -> None:
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_SECONDS)
    raise TierUnavailable(f"another process has held the lock of {key} for {LOCK_TRIES * LOCK_PAUSE_SECONDS:.0f} s")


def _read(fd: int, start: int, end: int) -> bytes:
    """Bytes [start, end) of a file; fewer if it ends early, which only a damaged disk causes: objects never shrink."""
    found: list[bytes] = []
    while start < end:
        data = os.pread(fd, end - start, start)
        if not data:
            break
        found.append(data)
        start += len(data)
    return found[0] if len(found) == 1 else b"".join(found)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _info(key: str, status: os.stat_result, checksum: int | None) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _etag(status), status.st_mtime_ns // 1_000_000, checksum)
