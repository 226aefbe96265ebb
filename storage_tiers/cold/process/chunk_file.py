"""A download into a file of the cache directory: verified MiB by MiB, visible only once it is whole.

Invariants: the file gets its final name only when all its bytes have arrived and match the checksums, and is never written
again; a failure leaves no file.

Each piece is checked and written on arrival, while it is in the processor's cache. Its memory can then be reused for the next
piece. Collecting a chunk and writing it in one call would cost more than twice the processor time. The write goes to the page
cache, which takes less time than handing it to a thread. The file needs no fsync: the cache is emptied at every start.

Not promised: that the event loop progresses while the disk hangs.
"""

from __future__ import annotations

import logging
import os

from storage_tiers import events
from storage_tiers.cold.process.settings import MIB
from storage_tiers.errors import StorageError, TierCorrupt, TierUnavailable
from storage_tiers.records.checksum import crc32c

log = logging.getLogger(__name__)


class ChunkFile:
    """`write` is a `Sink`. The caller ends the file with `finish` or `discard`; `restart` forgets the bytes received."""

    def __init__(self, path: str, key: str, position: int, length: int, crcs: tuple[int, ...] | None) -> None:
        """Creates the file for `length` bytes of `key` from `position`. `crcs` has the CRC-32C of each MiB; None verifies
        nothing."""
        self._path = path
        self._temporary = f"{path}.tmp"
        self._key = key
        self._position = position
        self._length = length
        self._crcs = crcs
        self._size = self._crc = 0
        try:
            self._fd = self._created()
        except OSError as error:
            raise self._unwritable(error) from error

    def _created(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(self._temporary, flags, 0o644)
        except FileNotFoundError:
            # The directory was removed while the node was running. Its files are only copies, so it is created again.
            directory = os.path.dirname(self._path)
            os.makedirs(directory, exist_ok=True)
            events.warning(log, "cache.directory_lost", path=directory)
            return os.open(self._temporary, flags, 0o644)

    def restart(self) -> None:
        self._size = self._crc = 0

    def write(self, piece: bytes | memoryview) -> None:
        """Writes the next piece. Raises StorageError if the disk refuses it, and TierCorrupt at the end of a MiB that fails its
        checksum, or beyond the requested length."""
        if self._size + len(piece) > self._length:
            raise TierCorrupt(f"{self._key}: the store sent more than the {self._length} bytes requested")
        view = memoryview(piece)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._size + done)
        except OSError as error:
            raise self._unwritable(error) from error
        while view:
            part = view[: MIB - self._size % MIB]
            self._crc = crc32c(part, self._crc)
            self._size += len(part)
            view = view[len(part) :]
            if self._size % MIB == 0 or self._size == self._length:
                self._verify()

    def finish(self) -> None:
        """Gives the file its final name. Raises TierCorrupt if the object ended early, TierUnavailable if the file was removed
        meanwhile, and StorageError if the disk refuses."""
        if self._size != self._length:
            raise TierCorrupt(
                f"{self._key} ends at byte {self._position + self._size}, before byte {self._position + self._length} that "
                "its manifest promises; run `tidelog fsck`"
            )
        try:
            os.rename(self._temporary, self._path)
        except FileNotFoundError as error:
            raise TierUnavailable(f"{self._temporary} was removed while it was written; retry") from error
        except OSError as error:
            raise self._unwritable(error) from error
        os.close(self._fd)

    def discard(self) -> None:
        os.close(self._fd)
        try:
            os.unlink(self._temporary)
        except OSError:
            pass

    def _verify(self) -> None:
        found, self._crc = self._crc, 0
        if self._crcs is None:
            return
        index = (self._size - 1) // MIB
        if found != self._crcs[index]:
            raise TierCorrupt(
                f"{self._key}: the MiB at byte {self._position + index * MIB} has CRC-32C {found:08x}, its sidecar says "
                f"{self._crcs[index]:08x}; its bytes were changed in the bucket. Run `tidelog fsck`"
            )

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write the cache file {self._path}: {error.strerror}; free some space, or let the node write there"
        )
