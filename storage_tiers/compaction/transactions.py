"""Decides which transactional batches and markers a cleaning may remove, in one pass over a log from its oldest batch on.

Data of an aborted transaction is removed at once. A marker may be removed once no batch of its transaction is left; until
then the entries of abort markers form the transaction index of the rewritten segment.

Invariants: the caller passes batches and markers in offset order, and knows each aborted transaction from the start. Records
from a transaction's last offset on never count as aborted with it, even if its marker is not passed.
Source: KIP-98, and `CleanedTransactionMetadata` of Kafka 4.2. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from storage_tiers.records.batch import BatchHeader
from storage_tiers.records.builder import ControlKind
from storage_tiers.types import AbortedTransaction

_first_offset = attrgetter("first_offset")


def aborted_of(segments: Iterable[tuple[int, Iterable[AbortedTransaction]]]) -> list[AbortedTransaction]:
    """The aborted transactions that segments of the bucket name. Each item is a segment's end offset and its list of aborted
    transactions; the oldest segment comes first. A transaction whose marker is in none of these segments ends with the last
    segment that names it: the marker lies beyond them, was removed with the records, or was lost with a disk. Later records of
    its producer belong to other transactions."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for end, aborted in segments:
        for each in aborted:
            is_marked = each.last_offset < end
            found[each.producer_id, each.first_offset] = each if is_marked else replace(each, last_offset=end)
    return list(found.values())


class CleanedTransactions:
    """`aborted` collects the index entries of the markers that are kept, until the caller takes them."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` are all aborted transactions that overlap the batches that are passed."""
        self.aborted: list[AbortedTransaction] = []
        self._expected = deque(sorted(set(aborted), key=_first_offset))
        #: By producer: its aborted transaction, and whether a batch of it was seen.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committing: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of this batch, which is not a control batch, were aborted."""
        self._begin(header.last_offset)
        if not header.transactional:
            return False
        begun = self._aborting.get(header.producer_id)
        if begun is None or header.base_offset >= begun[0].last_offset:  # the producer's next transaction
            self._committing.add(header.producer_id)
            return False
        self._aborting[header.producer_id] = (begun[0], True)
        return True

    def is_unneeded_marker(self, header: BatchHeader, kind: ControlKind | None, *, keep: bool) -> bool:
        """Whether the marker's transaction has no batch left. `kind` is None for a control batch that an earlier cleaning has
        emptied. With `keep` the marker and its index entry are kept in any case."""
        self._begin(header.last_offset)
        if kind is None:
            return True
        if kind is ControlKind.COMMIT:
            was_seen = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not was_seen
        aborting = self._aborting.pop(header.producer_id, None)
        if aborting is None or header.base_offset > aborting[0].last_offset:
            return True
        entry, was_seen = aborting
        if was_seen or keep:
            self.aborted.append(entry)
        return not was_seen

    def _begin(self, last_offset: int) -> None:
        while self._expected and self._expected[0].first_offset <= last_offset:
            entry = self._expected.popleft()
            self._aborting[entry.producer_id] = (entry, False)  # a producer has one transaction at a time
