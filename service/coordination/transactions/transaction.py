"""One transactional id: its producer, its current transaction, and the transitions between its states.

    empty ──▶ ongoing ──▶ prepare_commit ──▶ complete_commit ──▶ ongoing …
      ▲          └──────▶ prepare_abort ───▶ complete_abort  ──▶ ongoing …
      └── a producer begins again (InitProducerId), from either complete state

The empty and the complete states also change to prepare_abort, at an abort without partitions (version 2) or after a loss of
records, and to dead, when the id expires.

Pure. A transition changes this object and returns nothing; `value` is its record. Rules are those of Kafka 4.2.1's
TransactionMetadata. Where the KIPs disagree with Kafka's source or with the records that Kafka writes, the records decide.

Invariants: `TRANSITIONS` has every change of state. A prepared transaction ends as it was prepared, whatever happens later.
With version 2 and after fencing, markers have a later epoch than every batch of the transaction, so that every partition fences
a late batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable, Mapping, Set
from sys import getsizeof
from typing import NamedTuple

from grpc_api.contract.coordinator_errors import CoordinatorRecordTooLarge
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    Markers,
    ProducerIdAndEpoch,
)
from service.coordination.deadlines import Timer
from service.coordination.record_batches import record_bytes
from service.coordination.transaction_records import TopicPartitions, TransactionStatus, TransactionValue
from storage_tiers.types import FENCING_EPOCH, NO_PRODUCER_ID, TopicPartition

#: The partitions with an open transaction, by producer id.
OpenPartitions = Mapping[int, frozenset[TopicPartition]]
#: The partitions with an open transaction, by its producer.
OpenTransactions = Mapping[ProducerIdAndEpoch, Collection[TopicPartition]]
TransactionEvent = InitProducer | AddPartitions | EndTransaction

#: The last epoch of a producer id that a client may get (Kafka: Short.MAX_VALUE - 1).
LAST_EPOCH = FENCING_EPOCH - 1
NO_EPOCH = -1

_Status = TransactionStatus
PREPARED = frozenset({_Status.PREPARE_COMMIT, _Status.PREPARE_ABORT})
COMPLETED = frozenset({_Status.COMPLETE_COMMIT, _Status.COMPLETE_ABORT})
#: States in which no transaction is open.
IDLE = COMPLETED | {_Status.EMPTY}
#: Milliseconds after a completed transaction within which a commit without records is retriable; later it is refused.
EARLY_END_MS = 1_000

#: The states that may follow a state. Kafka never records its PREPARE_EPOCH_FENCE; here fencing goes directly to PREPARE_ABORT.
TRANSITIONS: Mapping[TransactionStatus, frozenset[TransactionStatus]] = {
    _Status.EMPTY: frozenset({_Status.EMPTY, _Status.ONGOING, _Status.PREPARE_ABORT, _Status.DEAD}),
    _Status.ONGOING: frozenset({_Status.ONGOING, _Status.PREPARE_COMMIT, _Status.PREPARE_ABORT}),
    _Status.PREPARE_COMMIT: frozenset({_Status.COMPLETE_COMMIT}),
    _Status.PREPARE_ABORT: frozenset({_Status.COMPLETE_ABORT}),
    _Status.COMPLETE_COMMIT: frozenset({_Status.EMPTY, _Status.ONGOING, _Status.PREPARE_ABORT, _Status.DEAD}),
    _Status.COMPLETE_ABORT: frozenset({_Status.EMPTY, _Status.ONGOING, _Status.PREPARE_ABORT, _Status.DEAD}),
    _Status.DEAD: frozenset(),
    _Status.PREPARE_EPOCH_FENCE: frozenset(),
}
#: Kafka's names, as ListTransactions shows them.
NAMES: Mapping[TransactionStatus, str] = {
    status: "".join(word.capitalize() for word in status.name.split("_")) for status in TransactionStatus
}
#: Most bytes of the transactional ids of a node, with the partitions of their transactions: 130,000 ids. They stay for
#: `transactional.id.expiration.ms`, a week.
IDS_BYTES = 256 << 20
#: Bytes of memory of a transactional id without its name, and of a partition of its transaction.
ID_BYTES, KEPT_PARTITION_BYTES = 1_950, 200
#: Most bytes of a record's value without its partitions, of a topic in it without name and partitions, and of a partition.
VALUE_BYTES, TOPIC_BYTES, PARTITION_BYTES = 100, 11, 4
#: Most bytes of a partition together with its topic, whose name has at most 249 characters.
PARTITION_AT_MOST_BYTES = 249 + TOPIC_BYTES + PARTITION_BYTES


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Groups the partitions by topic, in order. Sorting thousands of pairs instead would take several times as long."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return [(topic, sorted(topics[topic])) for topic in sorted(topics)]


def in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, found in by_topic(partitions) for number in found]


class Waiting(NamedTuple):
    """A request that waits for the markers of the previous transaction."""

    event: TransactionEvent
    waiter: object
    timer: Timer


class UnexpectedStatus(Exception):
    """A change of state that cannot happen: a defect of the caller."""


class TransactionView(NamedTuple):
    """A transactional id as readers see it at one time; its fields are Transaction's."""

    status: TransactionStatus
    producer: ProducerIdAndEpoch
    timeout_ms: int
    start_ms: int
    partitions: Set[TopicPartition] | None


class Transaction:
    """`last_epoch` is the client's epoch before `producer`'s, which identifies a repeated request; a restart forgets it.
    `previous_id` is the producer id whose epochs were used up last, `next_id` the id that replaces `producer`'s when the
    transaction completes; both NO_PRODUCER_ID otherwise. `recorded` is the view of the newest record, None before the first.
    `is_outdated` means that newer records may be lost, and the producer's open transaction must be aborted before another
    producer begins. `is_alone` means that certainly no other transaction has this one's epoch. Times are in ms, `start_ms` -1
    before the first transaction."""

    __slots__ = (
        "client_version",
        "counted_bytes",
        "expiry",
        "is_alone",
        "is_outdated",
        "last_epoch",
        "next_id",
        "partitions",
        "previous_id",
        "producer",
        "recorded",
        "start_ms",
        "status",
        "timeout",
        "timeout_ms",
        "transactional_id",
        "update_ms",
        "waiting",
    )

    def __init__(self, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> None:
        self.transactional_id = transactional_id
        self.producer = ProducerIdAndEpoch(producer_id, NO_EPOCH)
        self.last_epoch = NO_EPOCH
        self.previous_id = self.next_id = NO_PRODUCER_ID
        self.timeout_ms = timeout_ms
        self.status = TransactionStatus.EMPTY
        #: None before the first transaction, as in Kafka's record.
        self.partitions: set[TopicPartition] | None = None
        self.start_ms = -1
        self.update_ms = now_ms
        self.client_version = 0
        self.recorded: TransactionView | None = None
        self.is_outdated = self.is_alone = False
        #: The result of `kept_bytes` that its shard last counted.
        self.counted_bytes = 0
        #: The timers that abort the open transaction, and forget the idle id.
        self.timeout, self.expiry = Timer(self), Timer(self)
        #: Requests that wait for the markers of the previous transaction.
        self.waiting: deque[Waiting] = deque()

    def enter(self, status: TransactionStatus, now_ms: int) -> None:
        """Changes the state. Raises UnexpectedStatus if `TRANSITIONS` does not have the change."""
        if status not in TRANSITIONS[self.status]:
            raise UnexpectedStatus(f"{self.transactional_id}: no transition from {self.status.name} to {status.name}")
        self.status, self.update_ms = status, now_ms

    # --- its producer -------------------------------------------------------------------------------------------------
    @property
    def is_exhausted(self) -> bool:
        """Whether its producer id has no epoch left."""
        return self.producer.epoch >= LAST_EPOCH

    def is_known(self, expected: ProducerIdAndEpoch) -> bool:
        """Whether a client may continue as `expected`: this producer, or the producer before its id was replaced."""
        if expected == NO_PRODUCER or self.producer.epoch == NO_EPOCH or expected.id == self.producer.id:
            return True
        return expected.id == self.previous_id and expected.epoch >= LAST_EPOCH

    def begin_producer(self, expected: ProducerIdAndEpoch, spare_id: int, timeout_ms: int, now_ms: int) -> bool:
        """Begins a producer with the next epoch, or with a new id if no epoch is left. A client that continues as the previous
        producer has lost the answer and gets it again. Returns False if `expected` is older and therefore fenced."""
        current = self.producer
        goes_on = expected.epoch == current.epoch
        if current.epoch == FENCING_EPOCH:  # the fenced client has `last_epoch`
            goes_on = expected.epoch == self.last_epoch
        if self.is_exhausted and (goes_on or expected.epoch == NO_EPOCH):
            self.previous_id, self.last_epoch = current.id, expected.epoch
            self.producer = ProducerIdAndEpoch(spare_id, 0)
        elif expected == NO_PRODUCER:
            self.last_epoch = NO_EPOCH
            self.producer = current._replace(epoch=current.epoch + 1)
        elif current.epoch in (NO_EPOCH, expected.epoch) and current.epoch < FENCING_EPOCH:
            self.last_epoch = current.epoch
            self.producer = current._replace(epoch=current.epoch + 1)
        elif expected.epoch != self.last_epoch:
            return False
        self.timeout_ms = timeout_ms
        self.start_ms = -1
        self.partitions = None if self.partitions is None else set()
        self.enter(TransactionStatus.EMPTY, now_ms)
        return True

    # --- its transaction ----------------------------------------------------------------------------------------------
    def _start(self, client_version: int, now_ms: int) -> None:
        had_epoch = self.status in COMPLETED and self.client_version < EPOCH_PER_TRANSACTION
        self.is_alone = client_version >= EPOCH_PER_TRANSACTION and not had_epoch
        self.start_ms = now_ms

    def add(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> None:
        """Adds these partitions to the transaction, and opens it if it is not open."""
        if self.status is not TransactionStatus.ONGOING:
            self._start(client_version, now_ms)
        # As in Kafka, the previous id is forgotten: once the new id is in use, no client repeats the end of the previous id's
        # last transaction.
        self.previous_id = NO_PRODUCER_ID
        self.partitions = (self.partitions or set()).union(partitions)
        self.client_version = client_version
        self.enter(TransactionStatus.ONGOING, now_ms)

    def prepare(self, *, commit: bool, client_version: int, spare_id: int, now_ms: int) -> None:
        """Decides the transaction as the client requests. With version 2 the next epoch begins, and the markers carry it. So no
        late batch of this transaction can enter the next one."""
        if self.status is not TransactionStatus.ONGOING:
            self._start(client_version, now_ms)
        self.client_version = client_version
        if client_version >= EPOCH_PER_TRANSACTION:
            if self.is_exhausted:
                self.next_id = spare_id
            self.last_epoch = self.producer.epoch
            self.producer = self.producer._replace(epoch=self.producer.epoch + 1)
        self.enter(TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT, now_ms)

    def fence(self, version: int, now_ms: int) -> None:
        """Decides to abort, under an epoch that no client has, because the transaction timed out, another producer begins, or
        records are lost. `version` is the cluster's `transaction.version`. From version 2 on, the producer may begin again with
        its known epoch until another producer has begun. In earlier versions it is fenced."""
        is_known = version >= EPOCH_PER_TRANSACTION
        self.client_version = version if is_known else 0
        self.last_epoch = self.producer.epoch if is_known else NO_EPOCH
        self.producer = self.producer._replace(epoch=min(self.producer.epoch + 1, FENCING_EPOCH))
        self.enter(TransactionStatus.PREPARE_ABORT, now_ms)

    def has_lost(
        self, lost: Set[TopicPartition] | None, epochs: Mapping[int, int], open_in: OpenTransactions | None = None
    ) -> bool:
        """Whether newer records of the id, or records of its open transaction, are lost. The partitions `lost` have lost their
        newest records; None means that the partition with the id's own records has lost some of them. `epochs` are the latest
        epochs that partitions know, by producer id. If one is later than this producer's, a lost record assigned it. `open_in`
        has the same meaning as in `has_undecided`."""
        if lost is None or epochs.get(self.producer.id, NO_EPOCH) > self.producer.epoch:
            return True
        if open_in and self.has_undecided(open_in):
            return True
        return self.status is TransactionStatus.ONGOING and not lost.isdisjoint(self.partitions or ())

    def has_undecided(self, open_in: OpenTransactions) -> bool:
        """Whether a partition has an open transaction of the present producer epoch that is not the present transaction,
        because the marker of an earlier one is lost. Before version 2 all transactions have one epoch, so the next transaction
        joins the open one, and its marker decides both."""
        return not (self.partitions or set()).issuperset(open_in.get(self.producer, ()))

    def outdate(self) -> None:
        """Marks the id after newer records of it, or records of its transaction, were lost. No client may continue as its
        producer, which may have had any later epoch since. The next producer gets another id. A decided transaction is
        completed first, as decided."""
        self.is_outdated = True
        if self.status not in PREPARED:
            self.last_epoch, self.producer = NO_EPOCH, self.producer._replace(epoch=FENCING_EPOCH)

    def take_outdated(self) -> bool:
        """Returns whether an outdated producer must be ended now. If so, clears `is_outdated`."""
        is_due = self.is_outdated and self.status not in PREPARED
        self.is_outdated &= not is_due
        return is_due

    def complete(self, now_ms: int) -> None:
        """Called when all markers are written. The record keeps `client_version` 2 only if the transaction was alone in its
        epoch, because a fenced transaction has markers of version 2 even if its client does not know that version."""
        is_commit = self.status is TransactionStatus.PREPARE_COMMIT
        if self.next_id != NO_PRODUCER_ID:
            self.previous_id, self.producer, self.next_id = (
                self.producer.id,
                ProducerIdAndEpoch(self.next_id, 0),
                NO_PRODUCER_ID,
            )
        if not self.is_alone:
            self.client_version = min(self.client_version, EPOCH_PER_TRANSACTION - 1)
        self.partitions = set()
        self.enter(TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT, now_ms)
        if self.is_outdated:
            self.outdate()

    def is_early_end(self, event: EndTransaction, now_ms: int) -> bool:
        """Whether a client of version 2 commits its next transaction while the last one is being completed, or soon after, and
        none of the transaction's records has arrived. A race between the two threads of Kafka's Java producer does this. The
        producer's sender thread first checks for unsent records and then takes the request that ends the transaction; records
        and that request may both be added in between. The producer sends its records before a retry, but INVALID_TXN_STATE
        would end the producer. A Kafka broker needs longer to complete a transaction, so it nearly always returns
        CONCURRENT_TRANSACTIONS."""
        if not event.commit or event.client_version < EPOCH_PER_TRANSACTION or event.producer != self.following:
            return False
        return self.status in PREPARED or (self.status in COMPLETED and 0 <= now_ms - self.update_ms < EARLY_END_MS)

    @property
    def following(self) -> ProducerIdAndEpoch:
        """The id and epoch with which the client continues after it has ended its transaction."""
        return self.producer if self.next_id == NO_PRODUCER_ID else ProducerIdAndEpoch(self.next_id, 0)

    @property
    def markers(self) -> Markers:
        return Markers(
            self.transactional_id,
            self.producer,
            self.status is TransactionStatus.PREPARE_COMMIT,
            in_order(self.partitions or ()),
            self.client_version,
        )

    def kept_bytes(self, partitions: int = 0) -> int:
        """Bytes of memory of the id with this number of additional partitions in its transaction."""
        count = len(self.partitions or ()) + partitions
        return ID_BYTES + getsizeof(self.transactional_id) + count * KEPT_PARTITION_BYTES

    # --- its record ---------------------------------------------------------------------------------------------------
    @property
    def view(self) -> TransactionView:
        """The id as readers see it now. Sets of partitions are replaced, never changed."""
        return TransactionView(self.status, self.producer, self.timeout_ms, self.start_ms, self.partitions)

    @property
    def value(self) -> TransactionValue:
        return TransactionValue(
            self.producer.id,
            self.producer.epoch,
            self.timeout_ms,
            self.status,
            None
            if self.partitions is None
            else tuple(TopicPartitions(name, tuple(found)) for name, found in by_topic(self.partitions)),
            self.update_ms,
            self.start_ms,
            self.previous_id,
            self.next_id,
            0 if self.next_id != NO_PRODUCER_ID else NO_EPOCH,
            self.client_version,
        )

    def surely_fits(self, most: int, more: Collection[TopicPartition]) -> bool:
        """Whether the partitions are so few that `record_bytes` is at most `most`, whatever their names are."""
        count = len(self.partitions or ()) + len(more)
        return record_bytes(4 * len(self.transactional_id), VALUE_BYTES + count * PARTITION_AT_MOST_BYTES) <= most

    def record_bytes(self, more: Iterable[TopicPartition] = ()) -> int:
        """Most bytes of a batch with its record, if these partitions are in its transaction. Later records of that transaction
        are not larger."""
        topics: dict[str, int] = {}
        for topic, _ in (self.partitions or set()).union(more):
            topics[topic] = topics.get(topic, 0) + 1
        names = sum(len(topic.encode()) + TOPIC_BYTES + PARTITION_BYTES * count for topic, count in topics.items())
        return record_bytes(len(self.transactional_id.encode()), VALUE_BYTES + names)

    def check_completion(self, most: int) -> None:
        """Raises CoordinatorRecordTooLarge if the record of its completed transaction, which has no partitions, takes more than
        `most` bytes, because the topic's max.message.bytes was lowered since the decision."""
        size = record_bytes(len(self.transactional_id.encode()), VALUE_BYTES)
        if size > most:
            raise CoordinatorRecordTooLarge(
                f"{self.transactional_id!r}: completing its transaction takes a record of {size} bytes, more than {most}; "
                "raise max.message.bytes of __transaction_state"
            )

    @classmethod
    def loaded(cls, transactional_id: str, value: TransactionValue) -> Generator[None, None, Transaction]:
        """Makes the id from its record. Each partition is a step."""
        found = cls(transactional_id, value.producer_id, value.timeout_ms, value.update_timestamp)
        found.producer = ProducerIdAndEpoch(value.producer_id, value.producer_epoch)
        found.previous_id, found.next_id = value.previous_producer_id, value.next_producer_id
        found.status = value.status
        if value.partitions is not None:
            found.partitions = set()
            for topic in value.partitions:
                for partition in topic.partitions:
                    found.partitions.add(TopicPartition(topic.topic, partition))
                    yield
        found.start_ms = value.start_timestamp
        found.client_version = value.client_version
        # A transaction with a decided abort may have been fenced, and its client may not know version 2.
        is_clients = value.status is not TransactionStatus.PREPARE_ABORT
        found.is_alone = is_clients and value.client_version >= EPOCH_PER_TRANSACTION
        found.recorded = found.view
        return found


class WaitEnd(NamedTuple):
    """The owner of the timer that ends a request's wait."""

    transaction: Transaction
    waiter: object
