"""The sparse indexes of one segment: offset to file position, time to offset, and the aborted transactions.

Byte formats are Kafka's: `.index` entries of 8 bytes (offset relative to the base, position), `.timeindex` entries of 12
(timestamp in ms, relative offset), `.txnindex` entries of 34, all big-endian. An offset entry names the *last* offset of
the batch that begins at its position; a time entry says that no earlier batch has a larger maximum timestamp.

The newest segment's indexes live in memory (`OffsetIndex`, `TimeIndex`) and are written whole when the segment is closed and
synced; after a crash before that, recovery rebuilds them from the log. The indexes of closed segments are searched on disk
(`StoredOffsetIndex`, `StoredTimeIndex`) with a few small reads, so that history costs no memory.

The files have no checksum, because Kafka's format has none. `sound` detects a file of another segment. A truncated or zeroed
offset index is harmless, because each remaining entry leads to a batch at or before the one wanted. The other indexes are
synced.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
import os
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from storage_tiers.errors import StorageError
from storage_tiers.types import NO_TIMESTAMP, AbortedTransaction

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
TRANSACTION_ENTRY_BYTES = 34
#: Largest offset relative to a segment's base that an entry can hold.
MAX_RELATIVE_OFFSET = (1 << 31) - 1

_LOW = 0xFFFFFFFF
_OFFSET_ENTRY = struct.Struct(">q")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_TRANSACTION_VERSION = 0


class TimeEntry(NamedTuple):
    """The largest timestamp so far in ms, and the last offset (absolute) of the batch that has it."""

    timestamp: int
    offset: int


NO_TIME = TimeEntry(NO_TIMESTAMP, -1)


class OffsetIndex:
    """An offset index in memory. An entry is one number, relative offset << 32 | byte position: the eight bytes of the file."""

    __slots__ = ("base", "entries")

    def __init__(self, base: int) -> None:
        self.base = base
        self.entries: array[int] = array("q")

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, last_offset: int, position: int) -> None:
        self.entries.append((last_offset - self.base) << 32 | position)

    def lookup(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`."""
        index = bisect.bisect_right(self.entries, (offset - self.base) << 32 | _LOW)
        return self.entries[index - 1] & _LOW if index else 0

    def offset_from(self, position: int) -> int | None:
        """The offset of the first entry at `position` or later."""
        index = bisect.bisect_left(self.entries, position, key=_position)
        return self.base + (self.entries[index] >> 32) if index < len(self.entries) else None

    def last_position(self) -> int:
        return self.entries[-1] & _LOW if self.entries else 0

    def truncate(self, position: int) -> None:
        """Forgets batches at `position` and after."""
        while self.entries and self.entries[-1] & _LOW >= position:
            self.entries.pop()

    def encode(self) -> bytes:
        return _big_endian(self.entries)

    @classmethod
    def load(cls, path: str, base: int) -> OffsetIndex:
        index = cls(base)
        with open(path, "rb") as file:
            index.entries.frombytes(file.read())
        if sys.byteorder == "little":
            index.entries.byteswap()
        entries = index.entries
        if any(map(operator.le, entries[1:], entries)):
            # A power loss has zeroed the rest. Lookups tolerate that; appending after it would not work.
            rising = next(at for at in range(1, len(entries)) if entries[at] <= entries[at - 1])
            del entries[rising:]
        return index


class TimeIndex:
    """A time index in memory, as two parallel arrays: timestamps in ms, and offsets relative to `base`."""

    __slots__ = ("base", "offsets", "timestamps")

    def __init__(self, base: int) -> None:
        self.base = base
        self.timestamps: array[int] = array("q")
        self.offsets: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Adds an entry if `timestamp` is a new maximum."""
        timestamps = self.timestamps
        if timestamp > (timestamps[-1] if timestamps else NO_TIMESTAMP):
            timestamps.append(timestamp)
            self.offsets.append(offset - self.base)

    def first_at_or_after(self, timestamp: int) -> TimeEntry | None:
        index = bisect.bisect_left(self.timestamps, timestamp)
        return self._entry(index) if index < len(self.timestamps) else None

    def last(self) -> TimeEntry:
        return self._entry(-1) if self.timestamps else NO_TIME

    def truncate(self, offset: int) -> None:
        """Forgets entries that name `offset` or later."""
        while self.offsets and self.offsets[-1] + self.base >= offset:
            self.offsets.pop()
            self.timestamps.pop()

    def encode(self) -> bytes:
        timestamps, offsets = _big_endian(self.timestamps), _big_endian(self.offsets)
        content = bytearray(TIME_ENTRY_BYTES * len(self.timestamps))
        for byte in range(8):
            content[byte::TIME_ENTRY_BYTES] = timestamps[byte::8]
        for byte in range(4):
            content[8 + byte :: TIME_ENTRY_BYTES] = offsets[byte::4]
        return bytes(content)

    @classmethod
    def load(cls, path: str, base: int) -> TimeIndex:
        index = cls(base)
        with open(path, "rb") as file:
            content = file.read()
        for timestamp, relative in _TIME_ENTRY.iter_unpack(content[: len(content) // 12 * 12]):
            index.timestamps.append(timestamp)
            index.offsets.append(relative)
        return index

    def _entry(self, index: int) -> TimeEntry:
        return TimeEntry(self.timestamps[index], self.base + self.offsets[index])


class StoredOffsetIndex:
    """A closed segment's `.index`, searched on disk by bisection. OSError if the file cannot be read."""

    __slots__ = ("base", "path")

    def __init__(self, path: str, base: int) -> None:
        self.path = path
        self.base = base

    def sound(self, log_size: int) -> bool:
        """Whether the file can belong to this segment of `log_size` bytes: whole entries, the last one inside the segment."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size == 0 or size % OFFSET_ENTRY_BYTES:
                return size == 0
            last = _offset_entry(fd, size // OFFSET_ENTRY_BYTES - 1)
        finally:
            os.close(fd)
        return last >= 0 and last & _LOW < log_size

    def lookup(self, offset: int) -> int:
        key = (offset - self.base) << 32 | _LOW
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            low, high = 0, os.fstat(fd).st_size // OFFSET_ENTRY_BYTES
            position = 0
            while low < high:
                middle = (low + high) // 2
                entry = _offset_entry(fd, middle)
                if entry <= key:
                    position, low = entry & _LOW, middle + 1
                else:
                    high = middle
        finally:
            os.close(fd)
        return position

    def offset_from(self, position: int) -> int | None:
        """The offset of the first entry at `position` or later."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            low, high = 0, os.fstat(fd).st_size // OFFSET_ENTRY_BYTES
            found: int | None = None
            while low < high:
                middle = (low + high) // 2
                entry = _offset_entry(fd, middle)
                if _position(entry) >= position:
                    found, high = self.base + (entry >> 32), middle
                else:
                    low = middle + 1
        finally:
            os.close(fd)
        return found

    def last_position(self) -> int:
        return self.lookup(self.base + MAX_RELATIVE_OFFSET)


class StoredTimeIndex:
    """A closed segment's `.timeindex`, searched on disk by bisection. OSError if the file cannot be read."""

    __slots__ = ("base", "path")

    def __init__(self, path: str, base: int) -> None:
        self.path = path
        self.base = base

    def sound(self) -> bool:
        size = os.path.getsize(self.path)
        last = self.last()
        return size % TIME_ENTRY_BYTES == 0 and (size == 0 or (last.timestamp >= 0 and last.offset >= self.base))

    def first_at_or_after(self, timestamp: int) -> TimeEntry | None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            low, high = 0, os.fstat(fd).st_size // TIME_ENTRY_BYTES
            found: TimeEntry | None = None
            while low < high:
                middle = (low + high) // 2
                entry = self._entry(fd, middle)
                if entry.timestamp >= timestamp:
                    found, high = entry, middle
                else:
                    low = middle + 1
        finally:
            os.close(fd)
        return found

    def last(self) -> TimeEntry:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = os.fstat(fd).st_size // TIME_ENTRY_BYTES
            return self._entry(fd, count - 1) if count else NO_TIME
        finally:
            os.close(fd)

    def _entry(self, fd: int, index: int) -> TimeEntry:
        raw = os.pread(fd, TIME_ENTRY_BYTES, index * TIME_ENTRY_BYTES)
        timestamp, relative = _TIME_ENTRY.unpack(raw)
        return TimeEntry(timestamp, self.base + relative)


def encode_transactions(aborted: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a `.txnindex`."""
    return b"".join(
        _TRANSACTION_ENTRY.pack(
            _TRANSACTION_VERSION, entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset
        )
        for entry in aborted
    )


def read_transactions(path: str) -> list[AbortedTransaction]:
    """The content of a `.txnindex`. StorageError if the file is not a transaction index of version 0."""
    with open(path, "rb") as file:
        content = file.read()
    if len(content) % TRANSACTION_ENTRY_BYTES:
        raise StorageError(
            f"{path} is damaged: its {len(content)} bytes are not a multiple of {TRANSACTION_ENTRY_BYTES}. Keep it, and "
            "restart the node, which rebuilds it from the batches"
        )
    return list(_decode_transactions(path, content))


def read_transactions_since(path: str, offset: int) -> Iterator[AbortedTransaction]:
    """The transactions of a `.txnindex` that end at or above `offset`, read lazily: a fetch needs a few rows of possibly a
    million. No rows if there is no file; StorageError as `read_transactions`."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        size, fd = os.fstat(file.fileno()).st_size, file.fileno()
        if size % TRANSACTION_ENTRY_BYTES:
            read_transactions(path)  # raises
        at = bisect.bisect_left(range(size // TRANSACTION_ENTRY_BYTES), offset, key=partial(_last_offset, fd))
        while rows := os.pread(fd, ROWS_AT_ONCE * TRANSACTION_ENTRY_BYTES, at * TRANSACTION_ENTRY_BYTES):
            # All rows of one read are checked first: a damaged row is an error even where the caller stops before it.
            yield from list(_decode_transactions(path, rows))
            at += ROWS_AT_ONCE


#: Rows of a `.txnindex` that are read and decoded at a time.
ROWS_AT_ONCE = 256


def _last_offset(fd: int, row: int) -> int:
    last: int = _TRANSACTION_ENTRY.unpack(os.pread(fd, TRANSACTION_ENTRY_BYTES, row * TRANSACTION_ENTRY_BYTES))[3]
    return last


def _decode_transactions(path: str, content: bytes) -> Iterator[AbortedTransaction]:
    for version, *fields in _TRANSACTION_ENTRY.iter_unpack(content):
        if version > _TRANSACTION_VERSION:
            raise StorageError(f"{path} has version {version}, which this program cannot read")
        yield AbortedTransaction(*fields)


def _position(entry: int) -> int:
    return entry & _LOW


def _offset_entry(fd: int, index: int) -> int:
    raw = os.pread(fd, OFFSET_ENTRY_BYTES, index * OFFSET_ENTRY_BYTES)
    entry: int = _OFFSET_ENTRY.unpack(raw)[0]
    return entry


def _big_endian(entries: array[int]) -> bytes:
    if sys.byteorder == "big":
        return entries.tobytes()
    swapped = entries[:]
    swapped.byteswap()
    return swapped.tobytes()
