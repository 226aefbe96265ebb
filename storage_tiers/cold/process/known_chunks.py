"""Chunks that sessions of this process have downloaded. A session copies a chunk from another session's cache directory instead
of downloading it again. The usual reason is a partition that has moved to another broker of the machine.

Invariants: a copy is verified like a download, because the other broker's file may have been changed or removed. If that file
is wrong in any way, the chunk is downloaded. At most MAX_CHUNKS are known.

Not promised: a single copy of each chunk on the disk. Each broker has its own cache, and evicts for itself.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict

from storage_tiers.cold.process.chunk_file import ChunkFile
from storage_tiers.cold.process.operations import FetchChunk
from storage_tiers.cold.process.settings import MIB
from storage_tiers.errors import TierCorrupt

#: The most chunks that are known. Each takes about 400 bytes.
MAX_CHUNKS = 4096
#: A directory entry that another program has put in place of the file is not followed, and never waited for.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class KnownChunks:
    """Sessions are known by the number that they have in the budgets, their `owner`."""

    def __init__(self) -> None:
        #: The owner and the path of the newest file of each chunk, by object key, position and length.
        self._files: OrderedDict[tuple[str, int, int], tuple[int, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, question: FetchChunk, owner: int, path: str) -> None:
        name = _name(question)
        self._files[name] = owner, path
        self._files.move_to_end(name)
        if len(self._files) > MAX_CHUNKS:
            self._files.popitem(last=False)

    def find(self, question: FetchChunk, asker: int) -> str | None:
        """The path of another session's file. A session that asks for its own chunk again has lost the file, or distrusts
        it."""
        owner, path = self._files.get(_name(question), (asker, ""))
        return None if owner == asker else path

    def forget(self, question: FetchChunk, path: str) -> None:
        name = _name(question)
        if name in self._files and self._files[name][1] == path:
            del self._files[name]


def copied(path: str, length: int, file: ChunkFile) -> bool:
    """Writes the chunk at `path` to `file`. False if the chunk cannot be read, has another length, or fails a checksum. Raises
    StorageError if the disk refuses the copy. Blocks."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != length:
            return False
        for position in range(0, length, MIB):
            piece = os.pread(fd, min(MIB, length - position), position)
            if len(piece) < min(MIB, length - position):
                return False
            file.write(piece)
    except (OSError, TierCorrupt):
        return False
    finally:
        os.close(fd)
    return True


def _name(question: FetchChunk) -> tuple[str, int, int]:
    return question.key, question.position, question.length
