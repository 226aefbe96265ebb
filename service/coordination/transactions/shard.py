"""A transaction shard: the transactional ids of one partition of `__transaction_state`.

Pure; `service.coordination.runtime` runs it. A decision to commit or abort is first written as a record. When the record is
committed, the caller writes the `Markers` that `prepared` returns, and reports them with `completed`. After a load `prepared`
returns every decided transaction that is not completed. So a crash between any two of these steps does not change the outcome.

Checks, their order and errors are those of Kafka 4.2.1's TransactionCoordinator, with one difference. While markers of the
producer's own last transaction are being written, Kafka returns CONCURRENT_TRANSACTIONS, and the client retries 20 ms later.
Here the request waits for the markers, up to WAIT_MS.

Invariants: a request of a producer that was fenced changes nothing. A transaction open for longer than its timeout is aborted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import NamedTuple

from grpc_api.contract.caller import Caller
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    AddPartitions,
    DescribedTransaction,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    Markers,
    PartitionsAdded,
    ProducerInitialized,
    TransactionEnded,
)
from service.coordination.committed_views import CommittedViews, names_of
from service.coordination.counts import TransactionCounts
from service.coordination.deadlines import Deadlines, Timer
from service.coordination.kept_memory import KeptMemory
from service.coordination.outcome import Outcome
from service.coordination.transaction_records import (
    TransactionStatus,
    decode_key,
    decode_value_in_steps,
    encode_key,
    encode_value,
)
from service.coordination.transactions.last_outcomes import LastOutcomes
from service.coordination.transactions.readers import Wanted, described
from service.coordination.transactions.refusals import (
    answer_to,
    concurrent,
    fenced,
    init_error,
    no_mapping,
    no_room,
    not_added,
    not_ended,
    producer_error,
    too_large,
)
from service.coordination.transactions.transaction import (
    COMPLETED,
    IDLE,
    IDS_BYTES,
    KEPT_PARTITION_BYTES,
    LAST_EPOCH,
    NAMES,
    PREPARED,
    OpenPartitions,
    OpenTransactions,
    Transaction,
    TransactionEvent,
    TransactionView,
    WaitEnd,
    Waiting,
)
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import FENCING_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

#: Longest wait of a request for the markers of the previous transaction; far below clients' default request timeouts.
WAIT_MS = 5_000
#: Most waiting requests of one transactional id; a client has one in flight.
MAX_WAITING = 8
#: Time until the next attempt to abort a timed-out transaction, or to expire an id, whose record was too large.
TIME_OUT_AGAIN_MS = 10_000
#: Transactional ids in one share of a listing; the caller lets other tasks run between shares.
LISTED = 200
#: Most timers that one tick handles; the others follow in the next turn of the loop.
TIMERS_A_TICK = 100


class TransactionSettings(NamedTuple):
    """`transaction.max.timeout.ms` and `transactional.id.expiration.ms`."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    #: Most bytes of a batch of `__transaction_state`, which also limits a record.
    max_record_bytes: int = 1 << 20


class TransactionShard:
    """The shards of a node share `counts` and `memory`; `version` returns the cluster's `transaction.version`."""

    def __init__(
        self,
        settings: TransactionSettings,
        counts: TransactionCounts | None = None,
        version: Callable[[], int] = lambda: EPOCH_PER_TRANSACTION,
        memory: KeptMemory | None = None,
    ) -> None:
        self.settings = settings
        self._version, self._memory = version, (memory or KeptMemory(IDS_BYTES)).shard()
        self._counts = counts or TransactionCounts()
        self.written, self._deadlines = 0, Deadlines()
        self._transactions: dict[str, Transaction] = {}
        self.outcomes = LastOutcomes()
        #: Decided ids with the numbers of their uncommitted records, oldest first; and ids whose markers are due.
        self._deciding: OrderedDict[str, int] = OrderedDict()
        self._prepared: dict[str, None] = {}
        #: The committed state, for readers, of ids with an uncommitted record.
        self._views: CommittedViews[TransactionView] = CommittedViews()
        #: During a load, the newest committed record of each id with its time, and the uncommitted records in order.
        self._records: dict[str, tuple[bytes, int]] = {}
        self._later: list[tuple[int, str, bytes | None, int]] = []

    def bound(self, max_batch_bytes: int) -> None:
        self.settings = self.settings._replace(max_record_bytes=max_batch_bytes)

    # --- events -------------------------------------------------------------------------------------------------------
    def handle(self, event: TransactionEvent, caller: Caller, waiter: object, now_ms: int) -> Outcome:
        """Decides the event. The answer to `waiter` may belong to a later outcome."""
        outcome = Outcome()
        self._handle(event, waiter, now_ms, outcome)
        return self._counted(outcome)

    def may_write(self, event: TransactionEvent) -> bool:
        """Whether the answer may need a record."""
        return not (isinstance(event, AddPartitions) and event.verify_only)

    def _handle(self, event: TransactionEvent, waiter: object, now_ms: int, outcome: Outcome) -> None:
        known = self._transactions.get(event.transactional_id)
        if known is not None and known.status in PREPARED and self._may_wait(known, event):
            self._wait(known, event, waiter, now_ms)
            return
        match event:
            case InitProducer():
                begun = self._init(known, event, waiter, now_ms, outcome)
                if begun is not None:
                    outcome.answer(waiter, begun)
            case AddPartitions():
                outcome.answer(waiter, self._add(known, event, now_ms, outcome))
            case EndTransaction():
                outcome.answer(waiter, self._end(known, event, now_ms, outcome))

    def _wait(self, known: Transaction, event: TransactionEvent, waiter: object, now_ms: int) -> None:
        timer = Timer(WaitEnd(known, waiter))
        self._deadlines.set(timer, now_ms + WAIT_MS)
        known.waiting.append(Waiting(event, waiter, timer))

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def tick(self, now_ms: int) -> Outcome:
        """Handles due timers: timed-out transactions, expired ids, and requests whose wait has ended."""
        outcome = Outcome()
        for timer in islice(self._deadlines.due(now_ms), TIMERS_A_TICK):
            owner = timer.owner
            if isinstance(owner, Transaction):
                if timer is owner.timeout:
                    self._time_out(owner, now_ms, outcome)
                else:
                    self._expire(owner, now_ms, outcome)
            elif isinstance(owner, WaitEnd):
                self._waited(owner.transaction, owner.waiter, outcome)
        return self._counted(outcome)

    def completed(self, markers: Markers, now_ms: int) -> Outcome:
        """Called when all partitions that still exist have markers. Changes nothing if it raises CoordinatorRecordTooLarge."""
        outcome = Outcome()
        found = self._transactions.get(markers.transactional_id)
        if found is None or found.status not in PREPARED or found.producer != markers.producer:
            return outcome
        found.check_completion(self.settings.max_record_bytes)
        self._counts.ended(commit=found.status is TransactionStatus.PREPARE_COMMIT)
        found.complete(now_ms)
        self._count(found)
        self._write(found, outcome)
        self._idle(found, now_ms)
        waiting, found.waiting = found.waiting, type(found.waiting)()
        for each in waiting:
            self._deadlines.clear(each.timer)
            self._handle(each.event, each.waiter, now_ms, outcome)
        return self._counted(outcome)

    def prepared(self) -> list[Markers]:
        """The markers to write now, each returned once: those of transactions whose decision is committed."""
        found = [self._transactions[each].markers for each in self._prepared]
        self._prepared.clear()
        return found

    def committed(self, written: int) -> None:
        """Called when the shard's first `written` records are committed."""
        while self._deciding and self._deciding[name := next(iter(self._deciding))] < written:
            del self._deciding[name]
            self._prepared[name] = None
        self._views.commit(written)

    # --- InitProducerId -----------------------------------------------------------------------------------------------
    def _init(
        self, known: Transaction | None, event: InitProducer, waiter: object, now_ms: int, outcome: Outcome
    ) -> ProducerInitialized | None:
        """Returns the answer, or None if it comes later."""
        error = init_error(known, event, self.settings.max_timeout_ms)
        if error is None and known is None:
            known = Transaction(event.transactional_id, event.spare_producer_id, event.timeout_ms, now_ms)
            error = None if self._memory.has_room(known.kept_bytes()) else no_room(event.transactional_id)
        error = error or (None if known is None else too_large(known, self.settings.max_record_bytes))
        if known is None or error is not None:
            return ProducerInitialized(error)
        self._transactions[event.transactional_id] = known
        self._count(known)
        if known.status is TransactionStatus.ONGOING:
            # A previous producer left this transaction open. It ends first, and this request waits for its end.
            outcome.note("transaction.fenced", transactional_id=known.transactional_id, producer_id=known.producer.id)
            self._counts.fenced += 1
            known.fence(self._version(), now_ms)
            self._decide(known, outcome)
            self._wait(known, event, waiter, now_ms)
            return None
        if not known.begin_producer(event.expected, event.spare_producer_id, event.timeout_ms, now_ms):
            return ProducerInitialized(fenced(event.transactional_id, event.expected))
        self._write(known, outcome)
        self._idle(known, now_ms)
        return ProducerInitialized(None, known.producer)

    # --- AddPartitionsToTxn -------------------------------------------------------------------------------------------
    def _add(self, known: Transaction | None, event: AddPartitions, now_ms: int, outcome: Outcome) -> PartitionsAdded:
        error = producer_error(known, event.transactional_id, event.producer)
        if known is None or error is not None:
            return PartitionsAdded(error)
        if known.status in PREPARED:
            return PartitionsAdded(concurrent(known))
        added = (known.partitions or set()) if known.status is TransactionStatus.ONGOING else set()
        missing = [each for each in event.partitions if each not in added]
        if event.verify_only:
            return PartitionsAdded(None, [(each, not_added(event.transactional_id, each)) for each in missing])
        if missing or known.status is not TransactionStatus.ONGOING:
            if (too_many := too_large(known, self.settings.max_record_bytes, event.partitions)) is not None:
                return PartitionsAdded(too_many)
            if not self._memory.has_room(len(missing) * KEPT_PARTITION_BYTES):
                return PartitionsAdded(no_room(event.transactional_id))
            is_new = known.status is not TransactionStatus.ONGOING
            known.add(event.partitions, event.client_version, now_ms)
            self._count(known)
            self._write(known, outcome)
            if is_new:
                self._deadlines.set(known.timeout, now_ms + known.timeout_ms)
        return PartitionsAdded(None)

    # --- EndTxn -------------------------------------------------------------------------------------------------------
    def _end(self, known: Transaction | None, event: EndTransaction, now_ms: int, outcome: Outcome) -> TransactionEnded:
        if not event.transactional_id:
            return TransactionEnded(InvalidRequest("the transactional id is empty"))
        if known is None:
            return TransactionEnded(no_mapping(event.transactional_id, event.producer))
        if event.client_version < EPOCH_PER_TRANSACTION:
            return self._end_before_version_2(known, event, now_ms, outcome)
        asked, current = event.producer, known.producer
        if known.is_early_end(event, now_ms):
            return TransactionEnded(concurrent(known))
        is_over_id = known.previous_id == asked.id and asked.epoch == LAST_EPOCH and current.epoch == 0
        is_repeated = is_over_id or current.epoch == asked.epoch + 1
        if current.id != asked.id and not is_over_id:
            return TransactionEnded(no_mapping(event.transactional_id, asked))
        is_valid = is_repeated
        if known.status in COMPLETED:
            is_valid = is_repeated or asked.epoch == current.epoch
        elif known.status not in PREPARED:
            is_valid = asked.epoch == current.epoch
        if not is_valid or asked.epoch >= FENCING_EPOCH:
            return TransactionEnded(fenced(event.transactional_id, asked))
        is_commit = known.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
        if known.status in PREPARED:
            return TransactionEnded(concurrent(known)) if is_commit == event.commit else not_ended(known, event)
        if known.status in COMPLETED and is_repeated:  # the client has lost the answer
            return TransactionEnded(None, current) if is_commit == event.commit else not_ended(known, event)
        if known.status in IDLE and event.commit:
            return not_ended(known, event)
        error = self._prepare(known, event, now_ms, outcome)
        return TransactionEnded(error) if error is not None else TransactionEnded(None, known.following)

    def _prepare(self, known: Transaction, event: EndTransaction, now_ms: int, outcome: Outcome) -> LogError | None:
        error = too_large(known, self.settings.max_record_bytes)
        if error is None:
            spare_id = event.spare_producer_id if event.client_version >= EPOCH_PER_TRANSACTION else NO_PRODUCER_ID
            known.prepare(commit=event.commit, client_version=event.client_version, spare_id=spare_id, now_ms=now_ms)
            self._decide(known, outcome)
        return error

    def _end_before_version_2(
        self, known: Transaction, event: EndTransaction, now_ms: int, outcome: Outcome
    ) -> TransactionEnded:
        if (error := producer_error(known, event.transactional_id, event.producer)) is not None:
            return TransactionEnded(error)
        if known.status is TransactionStatus.ONGOING:
            return TransactionEnded(self._prepare(known, event, now_ms, outcome))
        is_commit = known.status in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.COMPLETE_COMMIT)
        if known.status is TransactionStatus.EMPTY or is_commit != event.commit:
            return not_ended(known, event)
        return TransactionEnded(concurrent(known) if known.status in PREPARED else None)

    # --- time ---------------------------------------------------------------------------------------------------------
    def _time_out(self, known: Transaction, now_ms: int, outcome: Outcome) -> None:
        if known.status is not TransactionStatus.ONGOING:
            return
        if too_large(known, self.settings.max_record_bytes) is not None:  # the topic's max.message.bytes was lowered
            self._deadlines.set(known.timeout, now_ms + TIME_OUT_AGAIN_MS)
            return
        outcome.note(
            "transaction.timed_out",
            transactional_id=known.transactional_id,
            producer_id=known.producer.id,
            timeout_ms=known.timeout_ms,
        )
        self._counts.timed_out += 1
        known.fence(self._version(), now_ms)
        self._decide(known, outcome)

    def _expire(self, known: Transaction, now_ms: int, outcome: Outcome) -> None:
        if known.status in IDLE and too_large(known, self.settings.max_record_bytes) is not None:  # as in `_time_out`
            self._deadlines.set(known.expiry, now_ms + TIME_OUT_AGAIN_MS)
        elif known.status in IDLE:
            known.enter(TransactionStatus.DEAD, known.update_ms)
            del self._transactions[known.transactional_id]
            self.outcomes.forget(known.transactional_id)
            self._memory.add(-known.counted_bytes)
            outcome.replace(known.transactional_id, known.recorded)
            outcome.write(encode_key(known.transactional_id), None)

    def _waited(self, known: Transaction, waiter: object, outcome: Outcome) -> None:
        for each in list(known.waiting):
            if each.waiter is waiter:
                known.waiting.remove(each)
                outcome.answer(waiter, answer_to(each.event, concurrent(known)))

    def _may_wait(self, known: Transaction, event: TransactionEvent) -> bool:
        """Whether the request is the next one of a producer whose transaction is being completed."""
        if len(known.waiting) >= MAX_WAITING:
            return False
        if isinstance(event, InitProducer):
            return 0 < event.timeout_ms <= self.settings.max_timeout_ms and known.is_known(event.expected)
        is_early = isinstance(event, EndTransaction) and known.is_early_end(event, known.update_ms)
        return self.may_write(event) and not is_early and event.producer == known.following

    # --- records ------------------------------------------------------------------------------------------------------
    def _decide(self, known: Transaction, outcome: Outcome) -> None:
        """Records the decision to commit or abort; its markers follow once the record is committed."""
        self._deciding[known.transactional_id] = self.written + len(outcome.records)
        self._write(known, outcome)

    def _write(self, known: Transaction, outcome: Outcome) -> None:
        outcome.replace(known.transactional_id, known.recorded)
        outcome.write(encode_key(known.transactional_id), encode_value(known.value))
        known.recorded = known.view

    def _count(self, known: Transaction) -> None:
        """Updates the memory counted for the id, and keeps the outcome of its last transaction."""
        self.outcomes.keep(known)
        before, known.counted_bytes = known.counted_bytes, known.kept_bytes()
        self._memory.add(known.counted_bytes - before)

    def _idle(self, known: Transaction, now_ms: int) -> None:
        self._deadlines.set(known.expiry, now_ms + self.settings.expiration_ms)

    def _counted(self, outcome: Outcome) -> Outcome:
        """Counts the outcome's records as passed to the runtime."""
        for name, view, position in outcome.views:
            self._views.keep(name, view, self.written + position)
        self.written += len(outcome.records)
        return outcome

    # --- loading ------------------------------------------------------------------------------------------------------
    def load(
        self,
        key: bytes,
        value: bytes | None,
        now_ms: int,
        *,
        is_committed: bool = True,
        producer_id: int = NO_PRODUCER_ID,
        written_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Loads one record of the log, in order. Raises CorruptRecord if its key is not readable; `loaded` decodes its value.
        An id is idle from the later of its value's time and its record's time, since a wrong clock may have set one of them."""
        if (name := decode_key(key)) is None:
            self.written += 1
            return
        if not is_committed:
            self._later.append((self.written, name, value, written_ms))
        elif value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = value, written_ms
        self.written += 1

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Only counts the marker, because no transaction writes to this partition."""
        self.written += 1

    def loaded(self, now_ms: int) -> Generator[None, None, Outcome]:
        """Called after all records are read. Completes decided transactions, resumes open ones, and lets idle ids expire."""
        for name, (value, written_ms) in self._records.items():
            yield from self._restore(name, value, written_ms)
        for record_number, name, newer, written_ms in self._later:
            before = self._transactions.pop(name, None)
            self._memory.add(0 if before is None else -before.counted_bytes)
            self._views.keep(name, None if before is None else before.recorded, record_number)
            self._deciding.pop(name, None)
            yield from self._restore(name, newer, written_ms)
            if name in self._transactions and self._transactions[name].status in PREPARED:
                self._deciding[name] = record_number
        self._records, self._later = {}, []
        for name, known in self._transactions.items():
            if known.status in PREPARED:
                if name not in self._deciding:
                    self._prepared[name] = None
            elif known.status is TransactionStatus.ONGOING:
                # At most a whole timeout from now, because the clock may have been ahead when the transaction began.
                began_ms = min(now_ms, known.start_ms)
                self._deadlines.set(known.timeout, max(now_ms, began_ms + known.timeout_ms))
            else:
                self._deadlines.set(known.expiry, max(now_ms, known.update_ms + self.settings.expiration_ms))
            yield
        return Outcome()

    def _restore(self, name: str, value: bytes | None, written_ms: int) -> Generator[None, None, None]:
        """Restores the id from this record, unless it is a tombstone."""
        if value is None:
            return
        recorded = yield from decode_value_in_steps(value)
        known = self._transactions[name] = yield from Transaction.loaded(name, recorded)
        known.update_ms = max(known.update_ms, written_ms)
        self._count(known)
        yield

    # --- lost records -------------------------------------------------------------------------------------------------
    def outdate(
        self, lost: Set[TopicPartition] | None, epochs: Mapping[int, int], open_in: OpenTransactions | None = None
    ) -> list[str]:
        """Fences the ids that have lost records (`Transaction.has_lost`), and returns them."""
        found = [name for name, known in self._transactions.items() if known.has_lost(lost, epochs, open_in)]
        for name in found:
            self._transactions[name].outdate()
        return found

    def end_outdated(self, now_ms: int, *, name: str, open_in: OpenPartitions) -> Outcome:
        """Records that the id's producer is fenced. Aborts its open transaction, also in the partitions of `open_in`."""
        outcome, known = Outcome(), self._transactions.get(name)
        if known is None or not known.take_outdated():
            return outcome  # the id has expired, is no longer outdated, or must complete its transaction first
        is_open, more = known.status is TransactionStatus.ONGOING, open_in.get(known.producer.id, frozenset())
        if (is_open or more) and too_large(known, self.settings.max_record_bytes, more) is None:
            known.partitions = set(more).union((known.partitions or ()) if is_open else ())
            known.fence(self._version(), now_ms)
            self._count(known)
            self._decide(known, outcome)
        elif not is_open and known.recorded != known.view:
            self._write(known, outcome)
        return self._counted(outcome)

    def is_outdated(self, name: str) -> bool:
        """Whether the id is still outdated, because its decided transaction must be completed before `end_outdated`."""
        return name in self._transactions and self._transactions[name].is_outdated

    # --- readers ------------------------------------------------------------------------------------------------------
    def describe(self, transactional_id: str) -> DescribedTransaction:
        return described(transactional_id, self._seen(transactional_id))

    def _seen(self, transactional_id: str) -> Transaction | TransactionView | None:
        """The id as readers see it; None if they do not see it."""
        is_viewed = transactional_id in self._views
        return self._views[transactional_id] if is_viewed else self._transactions.get(transactional_id)

    def figures(self) -> Iterator[Sequence[tuple[str, int]]]:
        """Yields each id's state and the start of its open transaction in ms (-1 without one), in shares as `list` does."""
        ids = tuple(self._transactions.values())
        for at in range(0, len(ids), LISTED):
            yield [
                (NAMES[known.status], -1 if known.status in IDLE else known.start_ms) for known in ids[at : at + LISTED]
            ]

    def list(self, request: ListTransactions, now_ms: int) -> Iterator[Sequence[ListedTransaction]]:
        """Yields the rows in shares, between which the caller lets other tasks run. Raises InvalidRegularExpression as
        `patterns.compiled` does."""
        wanted = Wanted(request, now_ms)
        ids = names_of(self._transactions, self._views)
        share = LISTED if wanted.pattern is None else 1  # a match may take milliseconds
        for at in range(0, len(ids), share):
            rows = (wanted.row(name, self._seen(name)) for name in ids[at : at + share])
            yield [row for row in rows if row is not None]
