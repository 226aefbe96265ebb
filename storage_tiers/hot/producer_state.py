"""The state of idempotent and transactional producers of a partition: deduplication, fencing and open transactions.

Pure. Invariants, as in Kafka (ProducerStateManager, ProducerAppendInfo of 4.2; KIP-98, KIP-360, KIP-890): the last five batches
of each producer are remembered and an exact repeat of one is a duplicate; a sequence continues its predecessor's (2^31 - 1 is
followed by 0); a new epoch begins at sequence 0; an older epoch is refused. An unknown producer may begin with any sequence,
because retention may have removed its records. A transaction is unstable from its first offset until its marker is below the
high watermark.

`check` decides whether a batch may be appended, and changes only the producer's last-seen time. `update` records a written
batch. At most `max_producers` are remembered. Beyond that, the producer that wrote longest ago and has no open transaction is
forgotten. The choice depends only on the order of the batches, so replaying the log yields the same state.

A transaction that is still open when its producer writes under a newer epoch has lost its marker, because a coordinator ends a
transaction in every partition before the next epoch begins. Nothing of the later epoch joins it, and no marker of a later
transaction decides it. Kafka's broker lets both happen, and so commits aborted records, or aborts committed ones.

`snapshot` is Kafka's format, with the newest batch of each producer. `state` is the snapshot followed by the earlier batches
(`earlier_batches`), so that a restart and another leader know every batch that a producer may repeat.

Four differences from Kafka: the handling of lost markers; producers expire by their last write, not by their records'
timestamps (else importing old records would disable deduplication); loading drops no producer for its age; their number is
bounded.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from storage_tiers.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidTransactionState,
    NotEnoughReplicas,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from storage_tiers.hot import earlier_batches, producer_snapshot
from storage_tiers.records.batch import TRANSACTIONAL_MASK, BatchHeader
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import FENCING_EPOCH, NO_TIMESTAMP

#: Batches remembered per producer: the largest `max.in.flight.requests.per.connection` with idempotence.
REMEMBERED_BATCHES = 5
#: Default bound of remembered producers: about 10 MB of memory, and 3.5 MB in a sidecar.
MAX_PRODUCERS = 20_000
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_COORDINATOR_EPOCH = -1
_MAX_SEQUENCE = (1 << 31) - 1

_COUNT = struct.Struct(">i")


class Duplicate(NamedTuple):
    """A batch that is already in the log. `timestamp` is its max timestamp in ms (the append time under LogAppendTime)."""

    base_offset: int
    last_offset: int
    timestamp: int


class RememberedBatch(NamedTuple):
    """One written batch. `offset_delta` is last minus first offset; `timestamp` is its max timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _MAX_SEQUENCE


# RememberedBatch(...) would cost three times as much, for every batch of a producer.
_new_batch = tuple.__new__
_NO_BATCH = RememberedBatch(NO_SEQUENCE, -1, 0, NO_TIMESTAMP)


class CompletedTransaction(NamedTuple):
    """One ended transaction. `last_offset` is the offset of its marker; `last_stable_offset` is the LSO after it ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    aborted: bool


class ProducerEntry:
    """One producer. `seen_ms` is the steady time of its last request in ms."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "seen_ms", "timestamp", "transaction_start")

    def __init__(self, epoch: int = NO_PRODUCER_EPOCH, seen_ms: int = 0) -> None:
        self.epoch = epoch
        #: The newest REMEMBERED_BATCHES, oldest first.
        self.batches: list[RememberedBatch] = []
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        #: Max timestamp of the last batch, in ms.
        self.timestamp = NO_TIMESTAMP
        #: First offset of the open transaction, -1 for none.
        self.transaction_start = -1
        self.seen_ms = seen_ms

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    def maybe_update_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerStateManager:
    """The producers of one partition. `max_producers` bounds their number."""

    __slots__ = ("_forgotten", "_newest", "_open", "_unreplicated", "max_producers", "producers")

    def __init__(self, max_producers: int = MAX_PRODUCERS) -> None:
        #: The entries by producer id, in the order of their last batches. Read-only for callers (DescribeProducers).
        self.producers: OrderedDict[int, ProducerEntry] = OrderedDict()
        self.max_producers = max_producers
        self._forgotten = 0
        self._newest = -1
        # First offset -> producer id, in the order of first offsets, because transactions begin at the log end.
        self._open: dict[int, int] = {}
        # First offset -> marker's offset, of transactions whose marker may not be replicated yet.
        self._unreplicated: dict[int, int] = {}

    # --- before an append ---------------------------------------------------------------------------------------------
    def check(self, header: BatchHeader, *, now_ms: int) -> Duplicate | None:
        """Checks a client's batch that has a producer id and a sequence; a repeated one is returned as a Duplicate.

        OutOfOrderSequence, InvalidProducerEpoch or InvalidTransactionState if it must not be appended, NotEnoughReplicas as
        `check_decided`. Batches from a coordinator or a leader are not checked.
        """
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return None
        entry.seen_ms = now_ms
        if header.producer_epoch == entry.epoch:
            first = header.base_sequence
            # The common case, which the checks below would let pass, too. Such a batch repeats no remembered one: five batches
            # hold far fewer records than there are sequence numbers.
            is_next = entry.batches and first == (entry.batches[-1].last_sequence + 1) & _MAX_SEQUENCE
            if is_next and (entry.transaction_start < 0 or header.attributes & TRANSACTIONAL_MASK):
                return None
            last = header.last_sequence
            for batch in entry.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return Duplicate(batch.last_offset - batch.offset_delta, batch.last_offset, batch.timestamp)
        self._check_epoch(header.producer_id, header.producer_epoch, entry)
        self.check_decided(header.producer_id, header.producer_epoch)
        _check_sequence(header, entry)
        if entry.transaction_start >= 0 and not header.transactional:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has an open transaction: end it before writing outside of one"
            )
        return None

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, transaction_version: int = 0
    ) -> None:
        """Checks a coordinator's marker. InvalidProducerEpoch, or TransactionCoordinatorFenced for a zombie coordinator.

        From transaction version 2 (KIP-890) the marker's epoch must be above the producer's, unless the marker is a repetition.
        It is one above its transaction's epoch, or FENCING_EPOCH: a marker of any other epoch belongs to a later transaction.
        """
        entry = self.producers.get(producer_id)
        if entry is None:
            return
        repeated = producer_epoch == entry.epoch and entry.transaction_start < 0
        if transaction_version >= 2 and producer_epoch == entry.epoch and not repeated:
            raise InvalidProducerEpoch(f"producer {producer_id}: a marker of epoch {producer_epoch} came too late")
        is_later = entry.transaction_start >= 0 and entry.epoch + 1 < producer_epoch < FENCING_EPOCH
        if transaction_version >= 2 and is_later:
            raise InvalidProducerEpoch(
                f"producer {producer_id}: a marker of epoch {producer_epoch} belongs to a later transaction than the open one "
                f"of epoch {entry.epoch} at offset {entry.transaction_start}, whose marker is lost"
            )
        self._check_epoch(producer_id, producer_epoch, entry)
        if coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"producer {producer_id}: coordinator epoch {coordinator_epoch} is older than the current "
                f"{entry.coordinator_epoch}"
            )

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """InvalidProducerEpoch if a newer instance of the producer has written."""
        entry = self.producers.get(producer_id)
        if entry is not None:
            self._check_epoch(producer_id, epoch, entry)

    def check_decided(self, producer_id: int, epoch: int, *, below: int = 1 << 63) -> None:
        """NotEnoughReplicas, which every producer retries, if a transaction under an older epoch is open that began before
        `below`. The marker is lost, or is on its way if the coordinator has not verified the later transaction. Nothing may
        join the open transaction until it is decided."""
        entry = self.producers.get(producer_id)
        if entry is not None and 0 <= entry.transaction_start < below and entry.epoch < epoch:
            raise NotEnoughReplicas(
                f"producer {producer_id}: its transaction of epoch {entry.epoch} at offset {entry.transaction_start} has lost "
                f"its marker, and must be decided before epoch {epoch} begins here; retry"
            )

    @staticmethod
    def _check_epoch(producer_id: int, epoch: int, entry: ProducerEntry) -> None:
        if epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} sent epoch {epoch}, a newer instance holds epoch {entry.epoch}: stop this one"
            )

    # --- after an append ----------------------------------------------------------------------------------------------
    def update(self, header: BatchHeader, base_offset: int, *, now_ms: int) -> None:
        """Records a written data batch of a producer (never a control batch)."""
        entry = self._entry(header.producer_id)
        entry.seen_ms = now_ms
        if header.producer_epoch != entry.epoch:
            entry.maybe_update_epoch(header.producer_epoch)
        sequence, delta, timestamp = header.base_sequence, header.last_offset_delta, header.max_timestamp
        last = NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + delta) & _MAX_SEQUENCE
        entry.timestamp = timestamp
        batches = entry.batches
        batches.append(_new_batch(RememberedBatch, (last, base_offset + delta, delta, timestamp)))
        if len(batches) > REMEMBERED_BATCHES:
            del batches[0]
        if header.attributes & TRANSACTIONAL_MASK and entry.transaction_start < 0:
            entry.transaction_start = base_offset
            self._open[base_offset] = header.producer_id

    def update_marker(
        self, header: BatchHeader, base_offset: int, *, coordinator_epoch: int, aborted: bool, now_ms: int
    ) -> CompletedTransaction | None:
        """Records a written end-of-transaction marker. None if the transaction had written nothing here."""
        producer_id = header.producer_id
        entry = self._entry(producer_id)
        first = entry.transaction_start
        entry.maybe_update_epoch(header.producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.timestamp = header.max_timestamp
        entry.seen_ms = now_ms
        entry.transaction_start = -1
        if first < 0:
            return None
        self._open.pop(first, None)
        self._unreplicated[first] = base_offset
        stable = next(iter(self._open), base_offset + 1)
        return CompletedTransaction(producer_id, first, base_offset, stable, aborted)

    def _entry(self, producer_id: int) -> ProducerEntry:
        """The entry of a producer that has just written; it becomes the newest."""
        producers = self.producers
        entry = producers.get(producer_id)
        if entry is None:
            if len(producers) >= self.max_producers:
                self._make_room()
            entry = producers[producer_id] = ProducerEntry()
        elif producer_id != self._newest:
            producers.move_to_end(producer_id)
        self._newest = producer_id
        return entry

    def _make_room(self) -> None:
        """Forgets the oldest producer without an open transaction. If all have one, the bound is exceeded."""
        for _ in range(len(self.producers)):
            producer_id, entry = self.producers.popitem(last=False)
            if entry.transaction_start >= 0:
                self.producers[producer_id] = entry
                continue
            self._forgotten += 1
            if len(self.producers) < self.max_producers:
                return

    def on_high_watermark(self, high_watermark: int) -> None:
        """Marks transactions as stable if their markers are below the high watermark, and so replicated."""
        done = [first for first, last in self._unreplicated.items() if last < high_watermark]
        for first in done:
            del self._unreplicated[first]

    def knows(self, producer_id: int, epoch: int) -> bool:
        """Whether a batch of the producer under this epoch is remembered."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.epoch == epoch and bool(entry.batches)

    # --- open transactions --------------------------------------------------------------------------------------------
    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer's transaction is open here under this epoch."""
        entry = self.producers.get(producer_id)
        return entry is not None and entry.transaction_start >= 0 and entry.epoch == epoch

    @property
    def in_transaction(self) -> Collection[int]:
        """Producer ids with an open transaction."""
        return self._open.values()

    @property
    def first_undecided_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return next(iter(self._open), None)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker may not be replicated yet; None if there is
        none. The last stable offset is this offset, or the high watermark if that is lower."""
        first = next(iter(self._open), None)
        if not self._unreplicated:
            return first
        waiting = min(self._unreplicated)
        return waiting if first is None or waiting < first else first

    @property
    def first_undecided_producer(self) -> int | None:
        """Producer id of the oldest open transaction."""
        return next(iter(self._open.values()), None)

    def has_late_transaction(self, now_ms: int, most_ms: int) -> bool:
        """Whether the producer of the oldest open transaction has written nothing for longer than `most_ms`."""
        producer_id = self.first_undecided_producer
        entry = None if producer_id is None else self.producers.get(producer_id)
        return entry is not None and now_ms - entry.seen_ms > most_ms

    def check_below(self, offset: int) -> None:
        """Raises CorruptRecord if this is the state at a later offset: a batch that the log lacks would pass for stored."""
        for producer_id, entry in self.producers.items():
            if (reached := max(entry.last_offset, entry.transaction_start)) >= offset:
                raise CorruptRecord(f"the producers are of a later offset than {offset}: {producer_id} has {reached}")

    def take_forgotten(self) -> int:
        """Number of producers forgotten for exceeding `max_producers` since the last call."""
        forgotten, self._forgotten = self._forgotten, 0
        return forgotten

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers without an open transaction that wrote nothing for `expiration_ms`; returns how many."""
        gone = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.transaction_start < 0 and now_ms - entry.seen_ms >= expiration_ms
        ]
        for producer_id in gone:
            del self.producers[producer_id]
        return len(gone)

    # --- snapshots ----------------------------------------------------------------------------------------------------
    def snapshot(self) -> bytes:
        """The content of a `.snapshot` file (version 1): only the newest batch of each producer, as in Kafka.

        Producers are sorted by id, so equal states have equal bytes.
        """
        entries = bytearray(_COUNT.size + len(self.producers) * producer_snapshot.ENTRY.size)
        _COUNT.pack_into(entries, 0, len(self.producers))
        # Runs on the event loop at each roll: with plain variables it takes 0.3 µs per producer.
        at, pack = _COUNT.size, producer_snapshot.ENTRY.pack_into
        for producer_id, e in sorted(self.producers.items()):
            sequence, offset, delta, _ = e.batches[-1] if e.batches else _NO_BATCH
            pack(
                entries,
                at,
                producer_id,
                e.epoch,
                sequence,
                offset,
                delta,
                e.timestamp,
                e.coordinator_epoch,
                e.transaction_start,
            )
            at += producer_snapshot.ENTRY.size
        return struct.pack(">hI", producer_snapshot.VERSION, crc32c(entries)) + entries

    def earlier(self) -> earlier_batches.Earlier:
        """The batches that `snapshot` omits. Costs little on the event loop; a thread may encode the batches."""
        return [(producer_id, e.batches[:-1]) for producer_id, e in self.producers.items() if len(e.batches) > 1]

    def state(self) -> bytes:
        """The snapshot, followed by the earlier batches if there are any. Equal states have equal bytes."""
        snapshot, earlier = self.snapshot(), self.earlier()
        return snapshot + (
            earlier_batches.encode(earlier, producer_snapshot.snapshot_crc(snapshot)) if earlier else b""
        )

    @classmethod
    def restore(cls, content: bytes, *, now_ms: int, max_producers: int = MAX_PRODUCERS) -> ProducerStateManager:
        """The state that `snapshot` or `state` wrote; every producer's last-seen time becomes `now_ms`. CorruptRecord if
        damaged."""
        snapshot, earlier = producer_snapshot.split_state(content)
        producer_snapshot.check_snapshot(snapshot)
        state = cls(max_producers)
        rows = producer_snapshot.ENTRY.iter_unpack(memoryview(snapshot)[producer_snapshot.HEAD.size :])
        for fields in sorted(rows, key=producer_snapshot.last_offset):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = fields
            entry = state.producers[producer_id] = ProducerEntry(epoch, now_ms)
            entry.coordinator_epoch = coordinator_epoch
            entry.timestamp = timestamp
            entry.transaction_start = transaction_start
            if offset >= 0:
                entry.batches.append(RememberedBatch(sequence, offset, delta, timestamp))
        if earlier:
            state.add_earlier(earlier, producer_snapshot.snapshot_crc(snapshot))
        pending = ((e.transaction_start, p) for p, e in state.producers.items() if e.transaction_start >= 0)
        state._open = dict(sorted(pending))
        return state

    def add_earlier(self, earlier: bytes, crc: int) -> None:
        """Adds the encoded earlier batches of the snapshot from which the state was restored; `crc` is the snapshot's.
        CorruptRecord if they are damaged or belong to another snapshot."""
        found: dict[int, list[RememberedBatch]] = {}
        for producer_id, fields in earlier_batches.decode(earlier, crc):
            found.setdefault(producer_id, []).append(RememberedBatch._make(fields))
        for producer_id, batches in found.items():
            entry = self.producers.get(producer_id)
            batches += entry.batches if entry is not None else ()
            if entry is None or not 1 < len(batches) <= REMEMBERED_BATCHES or not _follow_one_another(batches):
                raise CorruptRecord(f"the earlier batches of producer {producer_id} contradict the snapshot")
        for producer_id, batches in found.items():
            self.producers[producer_id].batches = batches


def _follow_one_another(batches: list[RememberedBatch]) -> bool:
    reached = -1
    for _, last_offset, delta, _ in batches:
        if not reached < last_offset - delta <= last_offset:
            return False
        reached = last_offset
    return True


def _check_sequence(header: BatchHeader, entry: ProducerEntry) -> None:
    first = header.base_sequence
    if header.producer_epoch != entry.epoch:
        if first != 0 and entry.epoch != NO_PRODUCER_EPOCH:
            raise OutOfOrderSequence(
                f"producer {header.producer_id} began epoch {header.producer_epoch} with sequence {first}; it must be 0"
            )
        return
    expected = (entry.last_sequence + 1) & _MAX_SEQUENCE
    if first != expected:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {first} where {expected} is expected: a batch before it is missing"
        )
