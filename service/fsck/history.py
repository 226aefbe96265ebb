"""Checks leader epochs, producers and transactions in sidecars against the batches of a run of segments.

A sidecar's epochs, producers and aborted transactions follow from its own batches and all earlier ones. This module replays the
batches of successive segments through the state machine that a broker uses for its log. It compares each sidecar with the state
at its segment's end.

    add(batch) … finish(segment, sidecar) … add(batch) … finish(segment, sidecar) … close()

Invariant: a sidecar is reported only if the batches that were read prove it wrong. Facts from before the first segment are
unknown, and therefore accepted. The same holds for facts from before a gap, where compaction has removed batches, and from
before a leader's first batch at the beginning of a segment, because newer records may have been lost with a disk. In a
compacted topic, a producer snapshot may lack a producer's newest batches, because a broker rebuilt the snapshot after a crash
from local segments that compaction had reduced. A topic counts as compacted if its own configs say so, or from the first gap
on, because brokers have a default policy, and policies change. If the local log was compacted before the offload, the bucket
may show neither sign. In that case a leader with a later epoch has offloaded the segment after a restart, and the segment's
list of aborted transactions may lack earlier transactions.

Not promised: a finding for a producer that is missing from a snapshot, because producers expire; a check of a transaction whose
marker is beyond the last segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments.sidecar import Sidecar
from storage_tiers.errors import CorruptRecord
from storage_tiers.hot.producer_state import ProducerEntry, ProducerStateManager
from storage_tiers.records.batch import BatchHeader
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_control
from storage_tiers.types import AbortedTransaction, EpochEntry

#: Large enough to keep all producers. A broker drops its oldest producers, but this module cannot know which.
_ALL_PRODUCERS = 1 << 62

#: Called with a sidecar's key and its fault.
Wrong = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class _EpochRun:
    """Successive batches of one epoch: the base offset of the first batch, and the last offset of the last batch."""

    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Aborted:
    """An aborted transaction, the leader epoch of its marker, and its first offset in each segment that has batches of it."""

    txn: AbortedTransaction
    epoch: int
    firsts: tuple[int, ...]

    def first_in(self, segment: RemoteSegment) -> int | None:
        return next((each for each in self.firsts if segment.base <= each < segment.end), None)


class History:
    """The history of the segments from offset `base` on. Everything before it is unknown. `wrong` is called with each
    finding."""

    def __init__(self, base: int, log_start: int, wrong: Wrong, *, is_compacted: bool = False) -> None:
        self._is_compacted = is_compacted
        self._base = self._next_offset = base
        self._log_start = log_start
        self._wrong = wrong
        self._segment_end = base
        self._state = ProducerStateManager(_ALL_PRODUCERS)
        #: The leader epoch of each producer's last batch.
        self._written_in: dict[int, int] = {}
        #: Producers whose last batch was reduced by compaction. The batch may have lost its newest record.
        self._reduced: set[int] = set()
        self._runs: list[_EpochRun] = []
        self._epochs_before: tuple[EpochEntry, ...] = ()
        #: By producer, the first offset of its open transaction in each segment.
        self._firsts: dict[int, list[int]] = {}
        self._aborted: list[_Aborted] = []
        self._unjudged: list[tuple[RemoteSegment, tuple[AbortedTransaction, ...]]] = []

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        last = self._runs[-1] if self._runs else None
        # A leader that begins at the end of the bucket's log may have lost later records with a disk, for example markers.
        begins = header.base_offset == self._segment_end and last is not None and last.epoch != header.leader_epoch
        self._is_compacted |= (
            header.base_offset > self._next_offset or header.count < header.next_offset - header.base_offset
        )
        if header.base_offset > self._next_offset or begins:
            self._forget(header.base_offset)
        self._next_offset = header.next_offset
        if last is not None and last.epoch == header.leader_epoch:
            self._runs[-1] = _EpochRun(last.epoch, last.first, header.last_offset)
        else:
            self._runs.append(_EpochRun(header.leader_epoch, header.base_offset, header.last_offset))
        if header.producer_id < 0:
            return
        self._written_in[header.producer_id] = header.leader_epoch
        if header.count <= 0:
            # Compaction has emptied the batch. If the batch was a marker, its kind is unknown, and the segments with the
            # transaction's data do not list the transaction.
            self._forget(header.next_offset)
            return
        if header.count < header.next_offset - header.base_offset:
            self._reduced.add(header.producer_id)
        else:
            self._reduced.discard(header.producer_id)
        if not header.control:
            self._state.update(header, header.base_offset, now_ms=0)
            if header.transactional:
                firsts = self._firsts.setdefault(header.producer_id, [])
                if not firsts or firsts[-1] < self._segment_end:
                    firsts.append(header.base_offset)
            return
        try:
            marker = decode_control(batch, verify=False)
        except CorruptRecord:
            return  # the check of the payloads reports it as undecodable
        if marker is None:
            return
        aborted = marker.kind is ControlKind.ABORT
        done = self._state.update_marker(
            header, header.base_offset, coordinator_epoch=marker.coordinator_epoch, aborted=aborted, now_ms=0
        )
        firsts = self._firsts.pop(header.producer_id, [])
        if done is not None and aborted:
            txn = AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset)
            self._aborted.append(_Aborted(txn, header.leader_epoch, tuple(firsts)))

    def finish(self, segment: RemoteSegment, sidecar: Sidecar | None) -> None:
        """Checks a segment's sidecar, after all batches of the segment were added. `sidecar` is None if it cannot be read."""
        self._segment_end = segment.end
        if sidecar is None:
            return
        fault = (
            self._wrong_epochs(segment, sidecar)
            or _disagreeing(self._epochs_before, sidecar.epochs, segment.base)
            or self._wrong_producers(segment, sidecar)
        )
        # A segment without records may replace a lost one. Its history is then that of the repairing node, cut at the log
        # start.
        self._epochs_before = sidecar.epochs if segment.records else ()
        if fault:
            self._wrong(segment.sidecar_key, fault)
        self._unjudged.append((segment, sidecar.aborted))
        if self._state.first_undecided_offset is None:
            self._judge()

    def close(self) -> None:
        """Checks the remaining transactions after the last segment."""
        self._judge()

    def _forget(self, base: int) -> None:
        """Marks producers and transactions before offset `base` as not fully known."""
        self._judge()
        self._base = base
        self._state = ProducerStateManager(_ALL_PRODUCERS)
        self._firsts.clear()

    # --- epochs -------------------------------------------------------------------------------------------------------
    def _wrong_epochs(self, segment: RemoteSegment, sidecar: Sidecar) -> str:
        said = sidecar.epochs
        for before, after in itertools.pairwise(said):
            if not (before.epoch < after.epoch and before.start_offset < after.start_offset):
                return f"its leader epochs {tuple(before)} and {tuple(after)} do not rise"
        if not said or said[0].epoch < 0 or said[0].start_offset < 0 or said[-1].start_offset >= segment.end:
            return f"its leader epochs {[tuple(each) for each in said]} are not a history up to offset {segment.end}"
        if said[0].start_offset > max(segment.base, self._log_start):
            return f"its leader epochs begin at offset {said[0].start_offset}, after its segment does"
        at = len(said)
        for run in reversed(self._runs):
            for offset in (run.last, run.first):
                while at and said[at - 1].start_offset > offset:
                    at -= 1
                if at == 0:
                    return ""  # the sidecar's epochs are cut at the log start of its time
                if said[at - 1].epoch != run.epoch:
                    return f"it has leader epoch {said[at - 1].epoch} at offset {offset}, but the batch there has {run.epoch}"
        if said[-1].epoch != self._runs[-1].epoch:
            return f"its newest leader epoch is {said[-1].epoch}, but its last batch has {self._runs[-1].epoch}"
        return ""

    # --- producers ----------------------------------------------------------------------------------------------------
    def _wrong_producers(self, segment: RemoteSegment, sidecar: Sidecar) -> str:
        try:
            restored = ProducerStateManager.restore(sidecar.producer_state, now_ms=0, max_producers=_ALL_PRODUCERS)
        except CorruptRecord as error:
            return str(error)
        said, epoch = restored.producers, _epoch_of(segment)
        if len(restored.state()) != len(sidecar.producer_state):
            return "its producer snapshot names a producer twice"
        for producer_id, theirs in said.items():
            if producer_id < 0:
                return f"its producer snapshot names producer {producer_id}"
            ours = self._state.producers.get(producer_id)
            may_be_older = self._is_compacted or self._written_in.get(producer_id, epoch) < epoch
            is_reduced = producer_id in self._reduced
            fault = self._wrong_producer(segment, theirs, ours, is_reduced=is_reduced, may_be_older=may_be_older)
            if fault:
                return f"producer {producer_id} at offset {segment.end}: {fault}"
        return ""

    def _wrong_producer(
        self,
        segment: RemoteSegment,
        theirs: ProducerEntry,
        ours: ProducerEntry | None,
        *,
        is_reduced: bool,
        may_be_older: bool,
    ) -> str:
        for name, offset in (("last offset", theirs.last_offset), ("open transaction", theirs.transaction_start)):
            if not -1 <= offset < segment.end:
                return f"its {name} is {offset}, beyond the segment"
        if theirs.coordinator_epoch < -1 or theirs.epoch < -1:
            return f"its epoch is {theirs.epoch}, its coordinator's {theirs.coordinator_epoch}"
        if ours is None:
            if max(theirs.last_offset, theirs.transaction_start) >= self._base or self._base == 0:
                return "it is in the snapshot, but in no batch"
            return ""
        if may_be_older and _is_older(theirs, ours):
            return ""
        known: list[tuple[str, int, int]] = [("epoch", theirs.epoch, ours.epoch)]
        if theirs.timestamp < ours.timestamp or not is_reduced:
            known.append(("timestamp", theirs.timestamp, ours.timestamp))
        if ours.batches or self._base == 0:
            known.append(("last offset", theirs.last_offset, ours.last_offset))
            known.append(("last sequence", theirs.last_sequence, ours.last_sequence))
            deltas = [each.batches[-1].offset_delta if each.batches else 0 for each in (theirs, ours)]
            known.append(("offset delta", deltas[0], deltas[1]))
        # A producer that expired and returned has no coordinator epoch, even if its earlier markers had one.
        if theirs.coordinator_epoch >= 0 and (ours.coordinator_epoch >= 0 or self._base == 0):
            known.append(("coordinator epoch", theirs.coordinator_epoch, ours.coordinator_epoch))
        if ours.transaction_start < 0 or not 0 <= theirs.transaction_start < self._base:
            known.append(("open transaction", theirs.transaction_start, ours.transaction_start))
        for name, said, found in known:
            if said != found:
                return f"its {name} is {said} in the snapshot, but {found} in the batches"
        return self._wrong_earlier(theirs, ours)

    def _wrong_earlier(self, theirs: ProducerEntry, ours: ProducerEntry) -> str:
        """Compares the producer's batches before its newest one. The sidecar may lack some of them, because a broker may have
        lost its file of them."""
        at = {each.last_offset: each for each in ours.batches}
        # Compaction may have removed a batch's newest record. A snapshot has the timestamp of a marker instead of its
        # producer's last batch's.
        any_time = self._is_compacted or max(theirs.coordinator_epoch, ours.coordinator_epoch) >= 0
        for each in theirs.batches[:-1]:
            found = at.get(each.last_offset)
            if any_time and found is not None:
                found = found._replace(timestamp=each.timestamp)
            is_unknown = self._is_compacted or each.last_offset - each.offset_delta < self._base
            if found != each and not (found is None and is_unknown):
                shown = "no batch is there" if found is None else f"the batch there is {tuple(found)}"
                return f"its earlier batch {tuple(each)} ends at offset {each.last_offset}, but {shown}"
        return ""

    # --- transactions -------------------------------------------------------------------------------------------------
    def _judge(self) -> None:
        for segment, said in self._unjudged:
            fault = self._wrong_aborted(segment, said)
            if fault:
                self._wrong(segment.sidecar_key, fault)
        self._unjudged.clear()
        # These transactions end below the next segment, so no later segment overlaps them.
        self._aborted.clear()

    def _wrong_aborted(self, segment: RemoteSegment, said: tuple[AbortedTransaction, ...]) -> str:
        there = [
            each
            for each in self._aborted
            if each.txn.first_offset < segment.end and each.txn.last_offset >= segment.base
        ]
        found = {each.txn for each in there}
        open_from, epoch = self._state.first_undecided_offset, _epoch_of(segment)
        for txn in said:
            if not (txn.first_offset < segment.end and txn.last_offset >= segment.base):
                return f"{_shown(txn)} does not overlap its segment"
            if not (0 <= txn.first_offset < txn.last_offset and 0 <= txn.last_stable_offset <= txn.last_offset + 1):
                return f"{_shown(txn)} is impossible"
            unknown = txn.first_offset < self._base or (open_from is not None and txn.last_offset >= open_from)
            if txn not in found and not unknown and not any(self._same(txn, other, segment, epoch) for other in there):
                return f"{_shown(txn)} is not in the batches"
        for each in sorted(there, key=lambda each: each.txn.first_offset):
            is_said = each.txn in said or any(self._same(other, each, segment, epoch) for other in said)
            if not is_said and (epoch <= each.epoch or each.first_in(segment) is not None):
                return f"{_shown(each.txn)} is not in it"
        if len(set(said)) != len(said):
            return "it names an aborted transaction twice"
        return ""

    def _same(self, said: AbortedTransaction, found: _Aborted, segment: RemoteSegment, epoch: int) -> bool:
        """Whether both are the same transaction. Differences are accepted if they have one of two causes: batches before the
        first one read, or a compaction of the local log before a start, which may have removed the transaction's batches before
        this segment."""
        txn = found.txn
        if (said.producer_id, said.last_offset) != (txn.producer_id, txn.last_offset):
            return False
        begun = said.first_offset == txn.first_offset or said.first_offset < self._base
        stable = said.last_stable_offset == txn.last_stable_offset or said.last_stable_offset < self._base
        if epoch > found.epoch:
            first = found.first_in(segment)
            begun |= txn.first_offset < said.first_offset <= (said.last_offset if first is None else first)
            stable |= txn.last_stable_offset < said.last_stable_offset
        return begun and stable


def _epoch_of(segment: RemoteSegment) -> int:
    """The leader epoch in which the segment was offloaded, -1 if its key does not contain it."""
    try:
        parsed = keys.parse(segment.key)
    except ValueError:
        return -1
    return parsed.epoch if isinstance(parsed, keys.SegmentKey) else -1


def _is_older(theirs: ProducerEntry, ours: ProducerEntry) -> bool:
    """Whether `theirs` is an earlier state of a producer than `ours`, or knows less of its open transaction. Timestamps come
    from clients, and a later batch may have a lower timestamp, so they order only markers. A marker is kept at least as long as
    the batches of its transaction, so no earlier state shows a finished transaction as open."""
    if theirs.transaction_start >= 0 and not 0 <= ours.transaction_start <= theirs.transaction_start:
        return False
    known, whole = ((each.epoch, each.last_offset) for each in (theirs, ours))
    if known != whole:
        return known < whole
    return (
        theirs.timestamp < ours.timestamp
        or theirs.coordinator_epoch < ours.coordinator_epoch
        or theirs.transaction_start > ours.transaction_start
    )


def _disagreeing(before: tuple[EpochEntry, ...], after: tuple[EpochEntry, ...], end: int) -> str:
    """Returns the fault, or an empty string. `before` and `after` are the epoch histories of successive segments; the first
    segment ends at `end`. They may differ only by entries that a rise of the log start cut from the front."""
    if not before or not after:
        return ""
    start = after[0].start_offset
    kept = [each for each in before if each.start_offset > start]
    cut = [each for each in before if each.start_offset <= start][-1:]
    if not cut or cut[0].epoch != after[0].epoch or kept != [each for each in after[1:] if each.start_offset < end]:
        shown = [[tuple(each) for each in found] for found in (after, before)]
        return f"its leader epochs {shown[0]} are not those of the segment before it, {shown[1]}"
    return ""


def _shown(txn: AbortedTransaction) -> str:
    return (
        f"the aborted transaction of producer {txn.producer_id} over offsets {txn.first_offset} to {txn.last_offset} "
        f"(last stable offset {txn.last_stable_offset})"
    )
