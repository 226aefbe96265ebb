"""The committed offsets of a shard's groups, and those that are being committed.

Two views: `newest` has every offset that was written, for decisions; `fetch` has those whose records are committed, for
readers. An offset of a transaction is in neither until the transaction's marker is.

Pure. `order` numbers the shard's records as they are written: offsets while it loads, counted on from there. Invariants: orders
rise; `fetch` never shows what a crash could take back; of two values of one partition the later record's counts, so a commit
marker replaces no plain commit that was written after the transaction's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from service.coordination.group_records import CommittedOffset
from storage_tiers.types import TopicPartition


class OffsetEntry(NamedTuple):
    """An offset and the order of its record; a `value` of None was removed."""

    value: CommittedOffset | None
    order: int


class _OffsetChange(NamedTuple):
    """`visible` is the order of the record that makes the entry visible: its own, or the transaction's marker."""

    group: str
    partition: TopicPartition
    entry: OffsetEntry
    visible: int


_NOTHING: Mapping[TopicPartition, OffsetEntry] = {}


class CommittedOffsets:
    __slots__ = ("_changes", "_committed", "_open", "_overlay", "_transactional")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, OffsetEntry]] = {}
        #: Written and not committed yet, oldest first, and the newest of them by partition.
        self._changes: deque[_OffsetChange] = deque()
        self._overlay: dict[str, dict[TopicPartition, OffsetEntry]] = {}
        #: Offsets of open transactions by producer id, and for each partition the producers that have one.
        self._transactional: dict[int, dict[tuple[str, TopicPartition], OffsetEntry]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}

    # --- writing ------------------------------------------------------------------------------------------------------
    def write(self, group: str, partition: TopicPartition, value: CommittedOffset | None, order: int) -> None:
        """A record outside any transaction; None for a tombstone, which also drops the offsets of open transactions."""
        if value is None:
            for producer_id in tuple(self._open.get(group, {}).get(partition, ())):
                self._drop(producer_id, group, partition)
        self._change(_OffsetChange(group, partition, OffsetEntry(value, order), order))

    def write_in_transaction(
        self, producer_id: int, group: str, partition: TopicPartition, value: CommittedOffset, order: int
    ) -> None:
        self._transactional.setdefault(producer_id, {})[group, partition] = OffsetEntry(value, order)
        self._open.setdefault(group, {}).setdefault(partition, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, commit: bool, order: int) -> None:
        """The producer's marker; `order` is the marker's."""
        for (group, partition), entry in tuple(self._transactional.get(producer_id, {}).items()):
            self._drop(producer_id, group, partition)
            known = self._newest(group, partition)
            if commit and (known is None or known.order < entry.order):
                self._change(_OffsetChange(group, partition, entry, order))

    def _change(self, change: _OffsetChange) -> None:
        self._changes.append(change)
        self._overlay.setdefault(change.group, {})[change.partition] = change.entry

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

    def commit_through(self, order: int) -> None:
        """All records up to this one are committed: readers see them."""
        changes = self._changes
        while changes and changes[0].visible <= order:
            group, partition, entry, _ = changes.popleft()
            committed = self._committed.setdefault(group, {})
            if entry.value is None:
                committed.pop(partition, None)
            else:
                committed[partition] = entry
            if not committed:
                del self._committed[group]
            overlay = self._overlay[group]
            if overlay[partition] is entry:
                del overlay[partition]
                if not overlay:
                    del self._overlay[group]

    # --- reading ------------------------------------------------------------------------------------------------------
    def fetch(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        entry = self._committed.get(group, _NOTHING).get(partition)
        return None if entry is None else entry.value

    def fetch_all(self, group: str) -> Mapping[TopicPartition, OffsetEntry]:
        """All committed offsets of a group, in the order of their first commits."""
        return self._committed.get(group, _NOTHING)

    def is_unstable(self, group: str, partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset for it."""
        return partition in self._open.get(group, {})

    def has_open_transactions(self, group: str) -> bool:
        return group in self._open

    def newest(self, group: str) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """All offsets of a group as written, committed or not; those of open transactions are left out."""
        overlay = self._overlay.get(group, _NOTHING)
        for partition, entry in self._committed.get(group, _NOTHING).items():
            if partition not in overlay and entry.value is not None:
                yield partition, entry.value
        for partition, entry in overlay.items():
            if entry.value is not None:
                yield partition, entry.value

    def order(self, group: str, partition: TopicPartition) -> int:
        """The order of the newest record of an offset; -1 if there is none."""
        entry = self._newest(group, partition)
        return -1 if entry is None else entry.order

    def partitions(self, group: str) -> list[TopicPartition]:
        """The partitions that a group has an offset of, as written or in an open transaction."""
        return list({**dict(self.newest(group)), **dict.fromkeys(self._open.get(group, ()))})

    def has_none_of(self, group: str, partitions: Set[TopicPartition]) -> bool:
        """Whether the group has no offset of any of these, in an open transaction neither."""
        return all(
            partitions.isdisjoint(offsets[group])
            for offsets in (self._committed, self._overlay, self._open)
            if group in offsets
        )

    def groups(self) -> set[str]:
        """The groups that have an offset, as written."""
        return {*self._committed, *self._overlay, *self._open}

    def _newest(self, group: str, partition: TopicPartition) -> OffsetEntry | None:
        return self._overlay.get(group, _NOTHING).get(partition) or self._committed.get(group, _NOTHING).get(partition)
