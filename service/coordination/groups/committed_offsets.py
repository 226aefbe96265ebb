"""The committed offsets of a shard's groups, and the offsets that are being committed.

There are two views. `newest` has every offset that was written, for decisions. `fetch` has the offsets whose records are
committed, for readers. A transaction's offset enters a view together with the transaction's marker. Until that marker is
committed, the partition is unstable, and a reader of stable offsets waits, since only the replaced offset could be returned.

An offset is kept as bytes, its record number followed by its record's value, because a node may have millions of offsets, and
Python objects would take five times as much memory. For the same reason groups share the `TopicPartition` objects.

Pure. A record number counts the shard's records in the order in which they are loaded and written. Invariants: numbers rise.
`fetch` never shows an offset that a crash could take back. For two values of one partition, the later record wins, so a commit
marker does not replace a plain commit that was written after the transaction's own record.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from service.coordination.commit_fields import OffsetChange
from service.coordination.group_records import CommittedOffset, decode_offset
from service.coordination.groups.unfinished import OFFSETS_A_STEP, shares
from storage_tiers.types import TopicPartition

#: The maximum number of partitions whose objects groups share.
SHARED_PARTITIONS = 1 << 16
_RECORD_NUMBER = struct.Struct(">q")
_RECORD_NUMBER_BYTES = _RECORD_NUMBER.size
#: The record number, followed by the value of the record, or by nothing if the offset was removed.
_Entry = bytes


_NOTHING: Mapping[TopicPartition, _Entry] = {}


class SeenOffsets(NamedTuple):
    """The offsets of a group as readers see them. `open` has the partitions with offsets in open transactions; those in
    `ending` have an uncommitted marker."""

    committed: Mapping[TopicPartition, _Entry]
    open: Container[TopicPartition]
    ending: Container[tuple[str, TopicPartition]]
    group: str

    def fetch(self, partition: TopicPartition) -> CommittedOffset | None:
        entry = self.committed.get(partition)
        return None if entry is None else _value(entry)

    def is_unstable(self, partition: TopicPartition) -> bool:
        return partition in self.open or (self.group, partition) in self.ending


class CommittedOffsets:
    """The offsets of all groups of one shard, by group and partition."""

    __slots__ = ("_changes", "_committed", "_ended", "_ending", "_open", "_overlay", "_transactional")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Entry]] = {}
        #: Changes that are written and not committed yet, oldest first, and the newest of them by partition. A change's last
        #: field is the number of the record that makes the entry visible: its own record, or the transaction's marker.
        self._changes: deque[OffsetChange] = deque()
        self._overlay: dict[str, dict[TopicPartition, _Entry]] = {}
        #: Offsets of open transactions by producer id, and for each partition the producers that have one.
        self._transactional: dict[int, dict[tuple[str, TopicPartition], _Entry]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        #: Markers that are not committed yet, by record number, with the offsets that they end; and each offset's last marker.
        self._ended: deque[tuple[int, tuple[tuple[str, TopicPartition], ...]]] = deque()
        self._ending: dict[tuple[str, TopicPartition], int] = {}

    # --- writing ------------------------------------------------------------------------------------------------------
    def write(self, group: str, partition: TopicPartition, value: bytes | None, record_number: int) -> None:
        """Adds a record outside any transaction. A `value` of None is a tombstone, which also drops the offsets of open
        transactions. For a value, `partition` is an object that `shared` returned."""
        if value is None:
            self._drop_open(group, partition)
        self._change(group, partition, _entry(value, record_number), record_number)

    def write_all(self, group: str, changes: Sequence[OffsetChange]) -> None:
        """Does the same as `write` for the records of one commit (at least one), which are already encoded."""
        self._changes.extend(changes)
        overlay = self._overlay.get(group)
        if overlay is None:
            overlay = self._overlay[group] = {}
        for _, partition, entry, _ in changes:
            overlay[partition] = entry

    def put_all(self, changes: Sequence[OffsetChange]) -> bool:
        """Does the same as `write_all` and `commit_through`. False, and nothing is changed, if other records are not committed
        yet."""
        if self._changes or self._ended:
            return False
        group = changes[0][0]
        committed = self._committed.get(group)
        if committed is None:
            committed = self._committed[group] = {}
        for _, partition, entry, _ in changes:
            committed[partition] = entry
        return True

    def load(self, group: str, partition: TopicPartition, value: bytes | None, record_number: int) -> None:
        """Does the same as `write` for a record that is committed, as are all records before it."""
        if self._changes or self._ended:
            self.commit_through(record_number - 1)
        if value is None:
            self._drop_open(group, partition)
            self._remove(group, partition)
        else:
            self._committed.setdefault(group, {})[partition] = _entry(value, record_number)

    def write_in_transaction(
        self, producer_id: int, group: str, partition: TopicPartition, value: bytes, record_number: int
    ) -> None:
        self._transactional.setdefault(producer_id, {})[group, partition] = _entry(value, record_number)
        self._open.setdefault(group, {}).setdefault(partition, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, commit: bool, record_number: int) -> Set[str]:
        """Applies the producer's marker, which has this record number. Returns the groups that had offsets in the
        transaction."""
        entries = tuple(self._transactional.get(producer_id, {}).items())
        if entries:
            ended = tuple(key for key, _ in entries)
            self._ended.append((record_number, ended))
            self._ending.update(dict.fromkeys(ended, record_number))
        for (group, partition), entry in entries:
            self._drop(producer_id, group, partition)
            known = self._newest(group, partition)
            if commit and (known is None or _record_number(known) < _record_number(entry)):
                self._change(group, partition, entry, record_number)
        return {group for (group, _), _ in entries}

    def _change(self, group: str, partition: TopicPartition, entry: _Entry, visible: int) -> None:
        self._changes.append((group, partition, entry, visible))
        overlay = self._overlay.get(group)
        if overlay is None:
            self._overlay[group] = {partition: entry}
        else:
            overlay[partition] = entry

    def _drop_open(self, group: str, partition: TopicPartition) -> None:
        for producer_id in tuple(self._open.get(group, {}).get(partition, ())):
            self._drop(producer_id, group, partition)

    def _drop(self, producer_id: int, group: str, partition: TopicPartition) -> None:
        entries = self._transactional[producer_id]
        del entries[group, partition]
        if not entries:
            del self._transactional[producer_id]
        partitions = self._open[group]
        partitions[partition].discard(producer_id)
        if not partitions[partition]:
            del partitions[partition]
            if not partitions:
                del self._open[group]

    def commit_through(self, record_number: int) -> None:
        """Makes all records up to this one visible to readers, because they are committed."""
        changes = self._changes
        while changes and changes[0][3] <= record_number:
            group, partition, entry, _ = changes.popleft()
            if len(entry) == _RECORD_NUMBER_BYTES:
                self._remove(group, partition)
            elif (committed := self._committed.get(group)) is None:
                self._committed[group] = {partition: entry}
            else:
                committed[partition] = entry
            overlay = self._overlay[group]
            if overlay[partition] is entry:
                del overlay[partition]
                if not overlay:
                    del self._overlay[group]
        while self._ended and self._ended[0][0] <= record_number:
            marker, ended = self._ended.popleft()
            for key in ended:
                if self._ending.get(key) == marker:
                    del self._ending[key]

    def _remove(self, group: str, partition: TopicPartition) -> None:
        committed = self._committed.get(group)
        if committed is not None:
            committed.pop(partition, None)
            if not committed:
                del self._committed[group]

    # --- reading ------------------------------------------------------------------------------------------------------
    def fetch(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        entry = self._committed.get(group, _NOTHING).get(partition)
        return None if entry is None else _value(entry)

    def seen(self, group: str, *, copied: bool) -> SeenOffsets:
        """The group's offsets as readers see them. The view is valid until the next change, unless it is `copied`."""
        committed, opened = self._committed.get(group, _NOTHING), self._open.get(group, {})
        if copied:
            return SeenOffsets(dict(committed), frozenset(opened), frozenset(self._ending), group)
        return SeenOffsets(committed, opened, self._ending, group)

    def count(self, group: str) -> int:
        """The number of a group's committed offsets."""
        return len(self._committed.get(group, _NOTHING))

    def offsets(self, group: str) -> Iterator[tuple[TopicPartition, int]]:
        """All committed offsets of a group, one at a time. Offsets that are removed during the iteration are left out."""
        for partition in tuple(self._committed.get(group, _NOTHING)):
            value = self.fetch(group, partition)
            if value is not None:
                yield partition, value.offset

    def pending(self, group: str) -> Iterator[tuple[TopicPartition, CommittedOffset, int]]:
        """The offsets of a group in open transactions, each with the number of its record."""
        for partition, producers in self._open.get(group, {}).items():
            for producer_id in producers:
                entry = self._transactional[producer_id][group, partition]
                yield partition, _value(entry), _record_number(entry)

    def is_unstable(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition, or an ended one whose marker is not committed yet."""
        return self.is_open(group, partition) or (group, partition) in self._ending

    def is_open(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition, as written."""
        return partition in self._open.get(group, {})

    def newest(self, group: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """All offsets of a group as written, committed or not, without those of open transactions."""
        overlay = self._overlay.get(group, _NOTHING)
        for partition, entry in self._committed.get(group, _NOTHING).items():
            if partition not in overlay:
                yield partition, _value(entry)
        for partition, entry in overlay.items():
            if not _is_removed(entry):
                yield partition, _value(entry)

    def written_offset(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        """Returns the partition's offset in `newest`, or None."""
        entry = self._newest(group, partition)
        return None if entry is None or _is_removed(entry) else _value(entry)

    def record_number(self, group: str, partition: TopicPartition) -> int:
        """The number of the newest record of an offset; -1 if there is none."""
        entry = self._newest(group, partition)
        return -1 if entry is None else _record_number(entry)

    def newest_record_number(self, group: str, partition: TopicPartition) -> int:
        """Does the same as `record_number`, but also counts the records of open transactions."""
        return max([self.record_number(group, partition), *self._pending_record_numbers(group, partition)])

    def has_pending_beside(self, group: str, partition: TopicPartition, record_number: int) -> bool:
        """Whether an open transaction has an offset with this record number or a later one, and there is also an older offset
        that is current, or may become so when its own transaction ends."""
        pending = self._pending_record_numbers(group, partition)
        if max(pending, default=-1) < record_number:
            return False
        entry = self._newest(group, partition)
        return (min(pending) if entry is None or _is_removed(entry) else _record_number(entry)) < record_number

    def _pending_record_numbers(self, group: str, partition: TopicPartition) -> list[int]:
        producers = self._open.get(group, {}).get(partition, ())
        return [_record_number(self._transactional[each][group, partition]) for each in producers]

    def written(self, group: str) -> Iterator[TopicPartition]:
        """The partitions of `newest`, without decoding the values."""
        overlay = self._overlay.get(group, _NOTHING)
        yield from (partition for partition in self._committed.get(group, _NOTHING) if partition not in overlay)
        yield from (partition for partition, entry in overlay.items() if not _is_removed(entry))

    def has(self, group: str, partition: TopicPartition) -> bool:
        """Whether the group has an offset of the partition, as written or in an open transaction."""
        entry = self._newest(group, partition)
        return (entry is not None and not _is_removed(entry)) or self.is_open(group, partition)

    def partitions(self, group: str) -> list[TopicPartition]:
        """The partitions with an offset of the group, as written or in an open transaction."""
        return list({**dict.fromkeys(self.written(group)), **dict.fromkeys(self._open.get(group, ()))})

    def shares(self, group: str) -> list[Sequence[TopicPartition]]:
        """Divides the group's partitions into shares of OFFSETS_A_STEP; there is at least one share. Some partitions may have
        no offset, or appear twice. Only references are copied, which takes some milliseconds for 100,000."""
        held = [*self._committed.get(group, ()), *self._overlay.get(group, ()), *self._open.get(group, ())]
        return shares(held, OFFSETS_A_STEP)

    def has_none_of(self, group: str, partitions: Set[TopicPartition]) -> bool:
        """Whether the group has no offset of any of these, including in open transactions."""
        return all(
            partitions.isdisjoint(offsets[group])
            for offsets in (self._committed, self._overlay, self._open)
            if group in offsets
        )

    def has_record_before(self, group: str, record_number: int) -> bool:
        """Whether the group has an offset from a record before this number, including in open transactions."""
        entries = chain(self._committed.get(group, _NOTHING).values(), self._overlay.get(group, _NOTHING).values())
        return any(
            each < record_number
            for each in chain(map(_record_number, entries), (found for *_, found in self.pending(group)))
        )

    def has_any(self, group: str) -> bool:
        """Whether the group has an offset, as written or in an open transaction."""
        overlay = self._overlay.get(group, _NOTHING)
        if group in self._open or not all(map(_is_removed, overlay.values())):
            return True
        return not self._committed.get(group, _NOTHING).keys() <= overlay.keys()

    def names(self) -> Iterator[str]:
        """The groups that have an offset or a tombstone, some perhaps twice. Nothing is copied, so nothing may be written
        during the iteration."""
        return chain(self._committed, self._overlay, self._open)

    def groups(self) -> set[str]:
        """Returns the groups that have an offset or an uncommitted tombstone."""
        return {*self._committed, *self._overlay, *self._open}

    def _newest(self, group: str, partition: TopicPartition) -> _Entry | None:
        return self._overlay.get(group, _NOTHING).get(partition) or self._committed.get(group, _NOTHING).get(partition)


@lru_cache(maxsize=SHARED_PARTITIONS)
def shared(topic: str, partition: int) -> TopicPartition:
    """Returns the same object for equal arguments, as long as the cache holds it."""
    return TopicPartition(topic, partition)


def _entry(value: bytes | None, record_number: int) -> _Entry:
    return _RECORD_NUMBER.pack(record_number) + (value or b"")


def _record_number(entry: _Entry) -> int:
    record_number: int = _RECORD_NUMBER.unpack_from(entry)[0]
    return record_number


def _is_removed(entry: _Entry) -> bool:
    return len(entry) == _RECORD_NUMBER_BYTES


def _value(entry: _Entry) -> CommittedOffset:
    return decode_offset(entry[_RECORD_NUMBER.size :])
