"""Value types that all layers share: partitions, offsets, descriptors that outlive eviction.

Values are immutable except `SharedFile`, whose use count lets the broker unlink a file while an answer is sent from it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from storage_tiers.uuids import parse_uuid, uuid_text

#: Leader epoch of a batch or request without one (Kafka protocol: -1).
NO_EPOCH = -1
#: Producer id of a batch that is not idempotent.
NO_PRODUCER_ID = -1
#: The epoch after the last one that a client can get. A marker with it ends a transaction of any epoch.
FENCING_EPOCH = (1 << 15) - 1
#: Timestamp of a batch without one.
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number, from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicId(bytes):
    """A topic's 16-byte id. Printed and stored in keys as 22 characters of URL-safe base64, as Kafka prints a Uuid."""

    def __new__(cls, value: bytes) -> TopicId:
        if len(value) != 16:
            raise ValueError(f"a topic id has 16 bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> TopicId:
        return cls(parse_uuid(text))

    def __str__(self) -> str:
        return uuid_text(self)

    def __repr__(self) -> str:
        return f"TopicId({str(self)!r})"


class OffsetRange(NamedTuple):
    """Offsets [base, end)."""

    base: int
    end: int

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.base <= offset < self.end


class SharedFile:
    """An open descriptor with a use count.

    Code that plans an answer from the file calls `acquire`, and `release` once the last byte is sent or abandoned. The last
    release closes the descriptor, so the path can be unlinked meanwhile. Not thread-safe: use it on the event loop only.
    """

    __slots__ = ("_users", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._users = 1

    @classmethod
    def open(cls, path: str) -> SharedFile:
        return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def users(self) -> int:
        return self._users

    def acquire(self) -> SharedFile:
        self._users += 1
        return self

    def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            os.close(self.fd)
            self.fd = -1


class FileSlice(NamedTuple):
    """Bytes [position, position + length) of an open file. The holder owns one use of `file` and releases it."""

    file: SharedFile
    position: int
    length: int


class TimestampOffset(NamedTuple):
    """The result of a lookup by time: a record's timestamp (ms since 1970), its offset, and its leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


class EpochEntry(NamedTuple):
    """One entry of a leader epoch history: `epoch` began at `start_offset`."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction: `last_offset` is its marker's offset, `last_stable_offset` the LSO at that time.

    Kafka: TransactionIndex (`.txnindex`), version 0.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
