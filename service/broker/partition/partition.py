"""One partition that this node holds. As leader it validates, appends and commits batches, and wakes waiting requests.

Runs on the event loop only. Appends are synchronous (one gathered write). Fsyncs and store traffic happen elsewhere. A flush
reports back through `flushed`. A record is visible only below the high watermark.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection

from grpc_api.contract.log import Appended, Isolation
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, Markers
from service.broker.partition import validating
from service.broker.partition.acknowledgements import Acknowledgements
from service.broker.partition.append_origin import CLIENT, COORDINATOR, REPLICA, AppendOrigin
from service.broker.partition.counts import PartitionCounts
from service.broker.partition.phase import EFFECTS, Life, PartitionEvent, Phase, Use
from service.broker.partition.record_loss import RecoveredEnd
from service.broker.partition.resignations import EndWith, Resignations
from service.broker.partition.state import ALL_STABLE, PartitionState
from service.broker.partition.verification import Verifications
from service.lifecycle.lease import Lease
from service.metadata.internal_topics import INTERNAL_TOPICS
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import (
    LeaderNotAvailable,
    LogError,
    NotLeader,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    UnknownTopicOrPartition,
)
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.settings import UNBOUNDED
from storage_tiers.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, plain_header, read_header
from storage_tiers.records.builder import ControlKind, build_control_batch
from storage_tiers.tiered_log import TieredLog
from storage_tiers.types import NO_EPOCH, NO_PRODUCER_ID, AbortedTransaction, FileSlice, TopicId, TopicPartition

#: Threads may write batches of at least this many bytes, and do so where writing is slow (`append_queues.WriteCost`).
WRITTEN_BY_THREAD = 16 << 10

#: Called with a partition that needs a flush, or has closed segments that may be offloaded.
Notify = Callable[["Partition"], None]


class Partition:
    """The partition's life (`phase.py`) decides which requests it refuses. Four answers of the life are cached, because every
    request, and every walk over all partitions, needs one of them. `write_error` and `read_error` are the errors for appends
    and reads in the current phase, None if they are served. `leads` tells whether this node is the leader, even while it
    refuses requests. `is_recovering` tells whether it refuses writes, and perhaps reads, until the store has answered."""

    __slots__ = (
        "_clock",
        "_committing",
        "_lease",
        "_on_flush_needed",
        "_on_roll",
        "_resignations",
        "_wake_planned",
        "cluster_id",
        "counts",
        "flushed_ms",
        "is_internal",
        "is_recovering",
        "leads",
        "life",
        "log",
        "moved_end",
        "partition",
        "queued",
        "queues",
        "read_error",
        "recovered_end",
        "seal_below",
        "state",
        "tier_due_ms",
        "topic_id",
        "verifications",
        "waiters",
        "write_error",
    )

    def __init__(
        self,
        log: TieredLog,
        state: PartitionState,
        *,
        cluster_id: str,
        clock: Clock,
        lease: Lease,
        on_flush_needed: Notify,
        on_roll: Notify,
    ) -> None:
        self.log = log
        self.cluster_id = cluster_id
        self.partition: TopicPartition = log.hot.partition
        self.topic_id: TopicId = log.hot.topic_id
        self.state = state
        self.waiters: set[Callable[[], None]] = set()
        #: Whether the topic is the cluster's own, to which clients do not append.
        self.is_internal = self.partition.topic in INTERNAL_TOPICS
        #: The number of batches that wait for threads, and whether the next batch goes through the queues.
        self.queued = 0
        self.queues = self.is_internal
        self.counts = PartitionCounts()
        self.verifications = Verifications()
        #: Where the log ended after it had lost its newest records, until that loss is settled (`record_loss`).
        self.recovered_end: RecoveredEnd | None = None
        self.seal_below = 0
        #: The log end at which another node handed the partition over to this one (`PartitionImage.moved_end`).
        self.moved_end = 0
        self.tier_due_ms = 0
        self.flushed_ms = clock.steady_ms()
        self._clock, self._lease = clock, lease
        self._on_flush_needed = on_flush_needed
        self._on_roll = on_roll
        self._committing = Acknowledgements()
        self._wake_planned = False
        self._resignations = Resignations(self.partition)
        self._enter(Life.begin(self.partition))
        self.settle_transactions()

    @property
    def ids(self) -> Ids:
        """The ids that name the partition in the bucket."""
        return Ids(self.cluster_id, self.partition.topic, self.topic_id, self.partition.partition)

    # --- its life -----------------------------------------------------------------------------------------------------
    def compare(self, why: LeaderNotAvailable) -> None:
        """Serves local records and refuses writes until `reconciled`: the log is compared with the store first."""
        self._apply(PartitionEvent.COMPARE, why)

    def recover(self, why: LeaderNotAvailable) -> None:
        """Refuses reads and writes until `reconciled`."""
        self._apply(PartitionEvent.RECOVER, why)

    def reconciled(self) -> None:
        """Serves reads, and writes unless the partition has failed: the log equals the bucket's, or continues it."""
        self._apply(PartitionEvent.RECONCILE)
        self.log.hot.begin_epoch(self.state.leader_epoch)

    def hold(self) -> None:
        """Refuses writes until `release` or the end of this leadership: another node is about to lead."""
        self._apply(PartitionEvent.HOLD, LeaderNotAvailable(f"{self.partition} moves to another broker; retry"))

    def release(self) -> None:
        """Accepts writes again, unless the partition is no longer held."""
        if self.phase is Phase.HANDING_OVER:
            self._apply(PartitionEvent.RELEASE)

    def lead(self, leader_epoch: int, followers: Collection[int] = ()) -> None:
        """This node leads from this epoch on, with these followers (node ids) in sync. Earlier epochs end at the log
        end. A partition that has followed serves no clients until `reconciled`. Raises ValueError for an earlier epoch."""
        self.state.check_epoch(leader_epoch)
        if self.leads:
            self._apply(PartitionEvent.BEGIN_EPOCH)
        else:
            self._apply(PartitionEvent.LEAD, LeaderNotAvailable(f"{self.partition}: this node begins to lead; retry"))
        if not self.is_recovering:
            self.log.hot.begin_epoch(leader_epoch)
        if self.state.lead(leader_epoch, followers):
            self._advanced()

    def follow(self, leader_epoch: int, leader: int) -> None:
        """Another node leads under this epoch, or no node if `leader` is -1. This node resigns. Raises ValueError for an
        earlier epoch."""
        self.state.new_epoch(leader_epoch)
        who = f"broker {leader} leads" if leader >= 0 else "no broker leads"
        self.resign(NotLeader(f"{self.partition}: {who} under leader epoch {leader_epoch}; refresh metadata"))

    def resign(self, error: NotLeader) -> None:
        """This node no longer leads. Pending acknowledgements, waiting fetches and the callbacks of `on_resigned` get the
        error; so do callers until the node leads again."""
        self.state.follow()
        self.verifications.clear()
        self._apply(PartitionEvent.RESIGN, error)

    def on_resigned(self, end: EndWith) -> Callable[[], None]:
        """Calls `end` once, with the error: NotLeader when this node resigns, UnknownTopicOrPartition when the topic is
        deleted, LeaderNotAvailable when the bucket's log replaces this one under the same leader and has to be read again.
        Calls it at once if this node does not lead. Returns a function that cancels the registration."""
        if not self.leads and self.read_error is not None:
            end(self.read_error)
            return lambda: None
        return self._resignations.add(end)

    def begin_at(self, offset: int) -> None:
        """The local log was discarded and begins again at `offset`, below which the bucket holds everything."""
        why = LeaderNotAvailable(f"{self.partition}: the local log was replaced by the bucket's; send again")
        self._apply(PartitionEvent.DISCARD, why)
        self.state.begin_at(offset)
        self.verifications.clear()
        self.recovered_end = RecoveredEnd(offset)
        self.settle_transactions()

    def fail(self, error: LogError) -> None:
        """Refuses writes until the node is restarted; pending acknowledgements get the error."""
        self._apply(PartitionEvent.FAIL, error)

    def delete(self) -> None:
        """Refuses reads and writes for ever; current waiters get the error."""
        self._apply(PartitionEvent.DELETE, UnknownTopicOrPartition(f"{self.partition} was deleted"))

    def _apply(self, event: PartitionEvent, why: LogError | None = None) -> None:
        """Raises UnexpectedEvent and changes nothing if the phase does not expect the event."""
        self._enter(self.life.after(event, why))
        effect = EFFECTS[event]
        if effect.ends_acknowledgements and why is not None:
            self._committing.refuse(why)
        if effect.wakes_readers and self.waiters:
            self._plan_wake()
        if effect.ends_registered and why is not None:
            self._resignations.end_all(why)

    def _enter(self, life: Life) -> None:
        """The only place that sets the phase."""
        self.life = life
        self.write_error = life.refusal(Use.WRITE)
        self.read_error = life.refusal(Use.READ)
        self.leads = life.is_leader
        self.is_recovering = life.is_recovering

    @property
    def phase(self) -> Phase:
        return self.life.phase

    @property
    def deleted(self) -> bool:
        """Whether the topic is gone. The log must not be touched then, because a new topic may have its directory's name."""
        return self.life.phase is Phase.DELETED

    def check(self, use: Use) -> None:
        """Raises the error that refuses this use in the current phase, if any."""
        error = self.life.refusal(use)
        if error is not None:
            raise error.with_traceback(None)  # otherwise the reused error would keep all frames that it has passed

    def check_writable(self) -> None:
        """Raises the error that refuses appends, if any."""
        if self.write_error is not None:
            raise self.write_error.with_traceback(None)

    def check_readable(self) -> None:
        """Raises the error that refuses reads, if any."""
        if self.read_error is not None:
            raise self.read_error.with_traceback(None)

    def check_leads(self) -> None:
        """Raises NotLeader if another node leads, UnknownTopicOrPartition if the topic is gone."""
        if not self.leads:
            self.check_readable()

    def settle_queues(self) -> None:
        """Decides whether batches go through the queues. Called after a config change, and when a batch has left a queue."""
        self.queues = self.queued > 0 or self.is_internal or self.log.hot.settings.stored_as is not None

    # --- writing ------------------------------------------------------------------------------------------------------
    def append(self, batch: memoryview) -> Appended:
        """Appends one batch as leader. If it raises a LogError or TakesLong, nothing was written. TakesLong means that the
        batch has to be validated in a thread."""
        if self.write_error is not None:
            self.check_writable()
        header = self.plain(batch)
        stamped = -1
        if header is None:
            batch, header, stamped = self.validate(batch, at_once=True)
        return self.append_validated(batch, header, stamped)

    def plain(self, batch: memoryview) -> BatchHeader | None:
        """The header of a valid batch that is stored unchanged; None if it needs more work."""
        settings = self.log.hot.settings
        if len(batch) > settings.kept_bytes:
            return None
        return plain_header(
            batch,
            settings.cleanup_compact,
            self._clock.unix_ms(),
            settings.timestamp_before_max_ms,
            settings.timestamp_after_max_ms,
        )

    def begin_write(self, batch: memoryview, header: BatchHeader, stamped: int) -> BatchWrite | Appended:
        """Appends a small batch as `append_validated` does. For a larger batch, returns the write that a thread makes before
        `finish_write`, or the answer if the batch is already in the log."""
        self.check_writable()
        if header.size < WRITTEN_BY_THREAD:
            return self.append_validated(batch, header, stamped)
        now_ms = self._clock.steady_ms()
        self._lease.check(now_ms)
        if header.producer_id != NO_PRODUCER_ID and (known := self._check_producer(header, now_ms)) is not None:
            return known
        return self.log.hot.appender.begin_write(batch, header, now_ms=now_ms)

    def finish_write(self, write: BatchWrite, batch: memoryview, header: BatchHeader, stamped: int) -> Appended:
        """Appends a batch that a thread has written; writes all of it here if that write was stopped."""
        hot, now_ms = self.log.hot, self._clock.steady_ms()
        if self.write_error is not None or self._lease.is_over(now_ms):
            self.give_up(write)
        self.check_writable()
        self._lease.check(now_ms)
        if not hot.appender.is_writing(write):
            return self.append_validated(batch, header, stamped)
        base = hot.appender.finish_write(write, batch, header, leader_epoch=self.state.leader_epoch, now_ms=now_ms)
        return self._appended(base, header, stamped)

    def give_up(self, write: BatchWrite) -> None:
        """Stops a write that a thread has begun, unless it has been stopped already. Waits for at most one piece of it."""
        if self.log.hot.appender.is_writing(write):
            with contextlib.suppress(StorageError):  # the next append cuts off the bytes of this one
                self.log.hot.appender.stop_write()

    def append_validated(
        self, batch: memoryview, header: BatchHeader, stamped: int = -1, origin: AppendOrigin = CLIENT
    ) -> Appended:
        """Appends a client's batch that `validate` has returned, or a batch of another origin unchanged."""
        now_ms = self._clock.steady_ms()  # ages are measured on this clock, which has no steps
        if origin is REPLICA:
            self.state.check_continues(header.base_offset)
            epoch = header.leader_epoch
        else:
            if self.write_error is not None:
                self.check_writable()
            self._lease.check(now_ms)
            epoch = self.state.leader_epoch
        if header.producer_id != NO_PRODUCER_ID and origin is CLIENT:
            duplicate = self._check_producer(header, now_ms)
            if duplicate is not None:
                return duplicate
        base = self.log.hot.appender.append(batch, header, leader_epoch=epoch, now_ms=now_ms)
        return self._appended(base, header, stamped)

    def append_marker(self, markers: Markers, coordinator_epoch: int) -> Appended:
        """Ends the producer's transaction here as its coordinator decided. Raises InvalidProducerEpoch if a newer producer has
        begun, TransactionCoordinatorFenced if a newer coordinator has written."""
        self.check_writable()
        producer_id, epoch = markers.producer
        self.log.hot.end.producers.check_marker(
            producer_id, epoch, coordinator_epoch, transaction_version=markers.version
        )
        batch = build_control_batch(
            ControlKind.COMMIT if markers.commit else ControlKind.ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._clock.unix_ms(),
        )
        appended = self.append_validated(memoryview(batch), read_header(batch), origin=COORDINATOR)
        # A marker of version 2 has the epoch of the producer's next transaction, whose verification may be under way already.
        self.verifications.ended(producer_id, epoch - 1 if markers.version >= EPOCH_PER_TRANSACTION else epoch)
        return appended

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer's transaction has begun here, under this epoch."""
        return self.log.hot.end.producers.is_in_transaction(producer_id, epoch)

    def check_transaction(self, producer_id: int, epoch: int) -> None:
        """Raises InvalidProducerEpoch or InvalidTransactionState unless the producer's transaction is open or may begin."""
        producers = self.log.hot.end.producers
        producers.check_epoch(producer_id, epoch)
        if not producers.is_in_transaction(producer_id, epoch):
            self.verifications.check(producer_id, epoch)

    def _appended(self, base: int, header: BatchHeader, stamped: int) -> Appended:
        hot = self.log.hot
        committed = self._committed(base, hot.end.offset)
        if header.attributes & TRANSACTIONAL_MASK:  # markers are transactional, too
            is_marker = header.attributes & CONTROL_MASK
            if not is_marker:
                self.verifications.ended(header.producer_id, header.producer_epoch)
            # While the transaction at the first unstable offset is open, only a marker can leave anything to settle.
            if is_marker or hot.end.producers.first_undecided_offset != self.state.first_unstable:
                self.settle_transactions()
        return Appended(base, self.state.leader_epoch, stamped, hot.log_start_offset, committed)

    def validate(self, batch: memoryview, *, at_once: bool = False) -> tuple[memoryview, BatchHeader, int]:
        """Returns the batch to store, its header, and the log append time or -1 (`validating.validate`). May run in a
        thread."""
        return validating.validate(
            batch, self.log.hot.settings, self.partition, now_ms=self._clock.unix_ms(), at_once=at_once
        )

    def _check_producer(self, header: BatchHeader, now_ms: int) -> Appended | None:
        """The answer to a batch that is already in the log; None for a new one."""
        hot = self.log.hot
        producers = hot.end.producers
        known = producers.check(header, now_ms=now_ms)
        if known is None:
            producer = header.producer_id, header.producer_epoch
            if header.attributes & TRANSACTIONAL_MASK and not producers.is_in_transaction(*producer):
                verification = self.verifications.check(*producer)
                if not producers.knows(*producer):
                    verification.check_first(header.base_sequence)
            return None
        return Appended(
            known.base_offset,
            self.state.leader_epoch,
            known.timestamp if hot.settings.timestamp_type == "LogAppendTime" else -1,
            hot.log_start_offset,
            self.until_committed(known.last_offset + 1),
        )

    def _committed(self, base: int, end: int) -> asyncio.Future[None] | None:
        hot, state = self.log.hot, self.state
        most = hot.settings.flush_messages
        must_flush = most != UNBOUNDED and end - hot.recovery_point >= most
        if state.appended(base, end, hold_until_flushed=must_flush) and (self._committing.waiting or self.waiters):
            self._advanced()
        if must_flush:
            self._on_flush_needed(self)
        if hot.appender.rolled:
            hot.appender.rolled = False
            self._on_roll(self)
        return self.until_committed(end) if self.leads and end > state.high_watermark else None

    def until_committed(self, end: int) -> asyncio.Future[None] | None:
        return None if end <= self.state.high_watermark else self._committing.at(end)

    def flushed(self, upto: int) -> None:
        self.flushed_ms = self._clock.steady_ms()
        if self.state.flushed(upto):
            self._advanced()

    def set_in_sync(self, followers: Collection[int]) -> None:
        if self.state.set_in_sync(followers):
            self._advanced()

    def set_min_in_sync(self, configured: int, replicas: int) -> None:
        if self.state.set_min_in_sync(configured, replicas):
            self._advanced()

    def settle_transactions(self) -> None:
        """Moves the last stable offset after transactions have begun or ended, or the log has changed otherwise than by an
        append. If it rose, readers of committed records wake, and closed segments that it held back are offloaded."""
        hot, state, before = self.log.hot, self.state, self.state.last_stable_offset
        hot.end.producers.on_high_watermark(state.high_watermark)
        if state.set_first_unstable(hot.end.producers.first_unstable_offset):
            self._plan_wake()
            if before < hot.active_start_offset:
                self._on_roll(self)

    def _advanced(self) -> None:
        if self.state.first_unstable != ALL_STABLE:
            self.settle_transactions()
        self._committing.reached(self.state.high_watermark)
        self._plan_wake()

    def _plan_wake(self) -> None:
        # Once per turn of the loop: fifty pipelined appends wake a waiting fetch only once.
        if self.waiters and not self._wake_planned:
            self._wake_planned = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_planned = False
        for notify in tuple(self.waiters):
            notify()

    # --- reading ------------------------------------------------------------------------------------------------------
    def readable_end(self, isolation: Isolation) -> int:
        """The offset at which readers stop."""
        state = self.state
        if not isolation:
            return state.high_watermark
        return state.last_stable_offset if isolation is Isolation.READ_COMMITTED else state.log_end

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises FencedLeaderEpoch for a caller with an older view, UnknownLeaderEpoch for one with a newer view (KIP-320)."""
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.state.leader_epoch:
            self.state.refuse_epoch(self.partition, current_leader_epoch)

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        isolation: Isolation,
        min_one: bool,
        aborted: list[AbortedTransaction] | None = None,
    ) -> list[FileSlice] | ColdMiss:
        """Reads as `TieredLog.read` does, below the end that the isolation sets."""
        end = self.readable_end(isolation)
        if offset >= end:
            if offset > self.log.end_offset:
                if self.is_recovering:
                    # The log may be an older copy. The store, which has not answered yet, may have the reader's records.
                    raise OffsetNotAvailable(f"{self.partition}: offset {offset} is not known yet; retry")
                raise OffsetOutOfRange(
                    f"{self.partition}: offset {offset} is past the log end {self.log.end_offset}; "
                    "ask ListOffsets where the log ends"
                )
            if offset < self.log.log_start_offset:
                raise OffsetOutOfRange(f"{self.partition}: offset {offset} is below the log start")
            return []
        return self.log.read(offset, max_bytes=max_bytes, upto_offset=end, min_one=min_one, aborted=aborted)
