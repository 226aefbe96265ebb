"""The leader epoch history: which leader wrote which offsets, for epoch-based truncation (KIP-101, KIP-279).

Invariant: epochs and start offsets both rise strictly. Pure but for `read_checkpoint`; the log decides when to write the file.
Kafka: LeaderEpochFileCache, `leader-epoch-checkpoint` version 0.

An entry may have no records: an epoch that began at the log end and wrote nothing stays until a later one begins at the same
offset, or a truncation drops it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from operator import attrgetter

from storage_tiers.errors import StorageError
from storage_tiers.types import NO_EPOCH, EpochEntry

#: Answer of `end_offset_for` for an unknown epoch (Kafka: UNDEFINED_EPOCH_OFFSET).
UNKNOWN = (NO_EPOCH, -1)

_start = attrgetter("start_offset")
_epoch = attrgetter("epoch")


class LeaderEpochs:
    """The history of one partition, in memory."""

    __slots__ = ("_entries", "latest")

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        #: The newest epoch, NO_EPOCH if there is none. Read on every append.
        self.latest = NO_EPOCH
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Records that `epoch` begins at `start_offset`, and drops entries that contradict it; False if it was known."""
        entries = self._entries
        if epoch < 0 or (entries and epoch == entries[-1].epoch and start_offset >= entries[-1].start_offset):
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.latest = epoch
        return True

    def epoch_at(self, offset: int) -> int:
        """The epoch under which `offset` was or would be written; NO_EPOCH before the first epoch."""
        index = bisect.bisect_right(self._entries, offset, key=_start)
        return self._entries[index - 1].epoch if index else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest known epoch <= `epoch`, its end offset); UNKNOWN for epochs above the newest and for NO_EPOCH.

        An epoch before the first known one keeps its own number and ends where the first known one begins.
        """
        entries = self._entries
        if epoch == NO_EPOCH or not entries:
            return UNKNOWN
        if epoch == entries[-1].epoch:
            return epoch, log_end
        index = bisect.bisect_right(entries, epoch, key=_epoch)
        if index == len(entries):
            return UNKNOWN
        known = entries[index - 1].epoch if index else epoch
        return known, entries[index].start_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets epochs that began at or after `end_offset`."""
        entries = self._entries
        while entries and entries[-1].start_offset >= end_offset:
            entries.pop()
        self.latest = entries[-1].epoch if entries else NO_EPOCH

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets epochs that ended at or before `start_offset`; the epoch that contains `start_offset` then begins there."""
        index = bisect.bisect_right(self._entries, start_offset, key=_start)
        if index:
            self._entries[:index] = [EpochEntry(self._entries[index - 1].epoch, start_offset)]

    def below(self, end_offset: int) -> tuple[EpochEntry, ...]:
        """The history of the records before `end_offset`."""
        return tuple(self._entries[: bisect.bisect_left(self._entries, end_offset, key=_start)])


def encode(entries: Iterable[EpochEntry]) -> bytes:
    """The text of `leader-epoch-checkpoint`."""
    lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def read_checkpoint(path: str) -> LeaderEpochs:
    """Reads the history at `path`. StorageError if the file is damaged, FileNotFoundError if it is missing."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        version, count, *lines = content.decode("ascii").splitlines()
        if version != "0" or int(count) != len(lines):
            raise ValueError(f"version {version}, {len(lines)} entries where {count} are announced")
        return LeaderEpochs(EpochEntry(*map(int, line.split(" "))) for line in lines)
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"{path} is damaged ({error}); leave it there: a starting node rebuilds it from the log's own batches "
            "and, where those have left the disk, from the bucket"
        ) from error
