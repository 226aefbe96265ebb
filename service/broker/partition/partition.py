"""One partition that this node leads: validates, appends, commits, and wakes whoever waits.

Runs on the event loop only. Appends are synchronous (one gathered write); fsyncs and store traffic happen elsewhere and
report back through `flushed` and `tiered`. A record is visible once it is below the high watermark, never before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from grpc_api.contract.log import Appended, Isolation
from service.broker.partition.counts import PartitionCounts
from service.broker.partition.phase import EFFECTS, Life, PartitionEvent, Phase, Use
from service.broker.partition.state import ALL_STABLE, PartitionState
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import (
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    LeaderNotAvailable,
    LogError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RecordTooLarge,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.settings import LARGE_BATCH_BYTES, UNBOUNDED
from storage_tiers.records.batch import (
    TRANSACTIONAL_MASK,
    BatchHeader,
    check_timestamps,
    plain_header,
    read_header,
    stamp_log_append_time,
    stamp_max_timestamp,
    validate,
)
from storage_tiers.records.recompress import recompress
from storage_tiers.records.record_errors import record_error
from storage_tiers.tiered_log import TieredLog
from storage_tiers.types import NO_EPOCH, NO_PRODUCER_ID, FileSlice, TopicId, TopicPartition

#: Bytes that a compressed batch may inflate to on the event loop: a millisecond of gzip's.
INFLATED_AT_ONCE = 256 << 10

#: From this size on a thread may write a batch, and does where writing is slow (`append_queues.WriteCost`).
WRITTEN_BY_THREAD = 16 << 10

#: Called with a partition that needs a flush or has rolled a segment.
Notify = Callable[["Partition"], None]


class TakesLong(Exception):
    """A batch cannot be validated in the time that the event loop has for one."""


class Partition:
    """Its life (`phase.py`) defines what it refuses. `write_error` and `read_error` are the errors for appends and reads in the
    current phase, None if they are served; they are cached here because every request checks one of them."""

    __slots__ = (
        "_clock",
        "_committing",
        "_on_flush_needed",
        "_on_roll",
        "_wake_planned",
        "cluster_id",
        "counts",
        "flushed_ms",
        "life",
        "log",
        "partition",
        "queued",
        "queues",
        "read_error",
        "seal_below",
        "state",
        "tier_due_ms",
        "topic_id",
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
        on_flush_needed: Notify,
        on_roll: Notify,
    ) -> None:
        self.log = log
        self.cluster_id = cluster_id
        self.partition: TopicPartition = log.hot.partition
        self.topic_id: TopicId = log.hot.topic_id
        self.state = state
        self.waiters: set[Callable[[], None]] = set()
        #: Batches that wait for threads, and whether the next one has to wait behind them.
        self.queued = 0
        self.queues = False
        self.counts = PartitionCounts()
        self.seal_below = 0
        self.tier_due_ms = 0
        self.flushed_ms = clock.steady_ms()
        self._clock = clock
        self._on_flush_needed = on_flush_needed
        self._on_roll = on_roll
        self._committing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._wake_planned = False
        self._enter(Life.begin(self.partition))
        self.settle_transactions()

    @property
    def ids(self) -> Ids:
        """The ids that name it in the bucket."""
        return Ids(self.cluster_id, self.partition.topic, self.topic_id, self.partition.partition)

    # --- its life -----------------------------------------------------------------------------------------------------
    def compare(self, why: LeaderNotAvailable) -> None:
        """Serves local records and refuses writes until `lead`: the store is compared first."""
        self._apply(PartitionEvent.COMPARE, why)

    def recover(self, why: LeaderNotAvailable) -> None:
        """Refuses reads and writes until `lead`."""
        self._apply(PartitionEvent.RECOVER, why)

    def lead(self) -> None:
        """Serves reads, and writes unless the partition has failed: the log equals the bucket's, or continues it."""
        self._apply(PartitionEvent.LEAD)
        self.log.hot.begin_epoch(self.state.leader_epoch)

    def begin_epoch(self, leader_epoch: int) -> None:
        """This node leads under a later epoch, or will: what was written under the one before ends at the log end. ValueError
        for an earlier one."""
        self._apply(PartitionEvent.BEGIN_EPOCH)
        self.state.new_epoch(leader_epoch)
        if not self.is_recovering:
            self.log.hot.begin_epoch(leader_epoch)

    def begin_at(self, offset: int) -> None:
        """The local log was discarded and begins anew at `offset`, below which the bucket holds everything."""
        why = LeaderNotAvailable(f"{self.partition}: the local log was replaced by the bucket's; send again")
        self._apply(PartitionEvent.DISCARD, why)
        self.state.begin_at(offset)
        self.settle_transactions()

    def fail(self, error: LogError) -> None:
        """Refuses writes until the node is restarted; pending acknowledgements get the error."""
        self._apply(PartitionEvent.FAIL, error)

    def delete(self) -> None:
        """Refuses reads and writes for ever; current waiters get the error."""
        self._apply(PartitionEvent.DELETE, UnknownTopicOrPartition(f"{self.partition} was deleted"))

    def _apply(self, event: PartitionEvent, why: LogError | None = None) -> None:
        """UnexpectedEvent, and nothing is changed, where the phase does not expect it."""
        self._enter(self.life.after(event, why))
        effect = EFFECTS[event]
        if effect.ends_acknowledgements and why is not None:
            self._refuse(why)
        if effect.wakes_readers and self.waiters:
            self._plan_wake()

    def _enter(self, life: Life) -> None:
        """The one assignment of its phase."""
        self.life = life
        self.write_error = life.refusal(Use.WRITE)
        self.read_error = life.refusal(Use.READ)

    @property
    def phase(self) -> Phase:
        return self.life.phase

    @property
    def deleted(self) -> bool:
        """The topic is gone. Nothing of this log may be touched any more: its directory's name may be another topic's."""
        return self.life.phase is Phase.DELETED

    @property
    def is_recovering(self) -> bool:
        """Whether it refuses writes, and perhaps reads, until the store has answered."""
        return self.life.is_recovering

    def check(self, use: Use) -> None:
        """Raises the error with which this use is refused now, if any."""
        error = self.life.refusal(use)
        if error is not None:
            raise error.with_traceback(None)  # else one error, raised for ever, would hold every frame it met

    def check_writable(self) -> None:
        """Raises the error that refuses appends, if any."""
        if self.write_error is not None:
            raise self.write_error.with_traceback(None)

    def check_readable(self) -> None:
        """Raises the error that refuses reads, if any."""
        if self.read_error is not None:
            raise self.read_error.with_traceback(None)

    def check_exists(self) -> None:
        """Raises UnknownTopicOrPartition if the topic is gone."""
        if self.deleted:
            self.check_readable()

    def settle_queues(self) -> None:
        """After a change of the configs, and whenever a batch has left the queue."""
        self.queues = self.queued > 0 or self.log.hot.settings.stored_as is not None

    # --- writing ------------------------------------------------------------------------------------------------------
    def append(self, batch: memoryview) -> Appended:
        """Appends one batch as leader. Any LogError means that nothing was written; so does TakesLong: it is to be validated
        in a thread."""
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
        """Appends a small batch as `append_validated` does; else returns what a thread has to write before `finish_write`."""
        self.check_writable()
        if header.size < WRITTEN_BY_THREAD:
            return self.append_validated(batch, header, stamped)
        now_ms = self._clock.steady_ms()
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self._check_producer(header, now_ms)
            if duplicate is not None:
                return duplicate
        return self.log.hot.appender.begin_write(batch, header, now_ms=now_ms)

    def finish_write(self, write: BatchWrite, batch: memoryview, header: BatchHeader, stamped: int) -> Appended:
        """Appends a batch that a thread has written; writes all of it here if that write was stopped."""
        hot = self.log.hot
        if self.write_error is not None:
            self.give_up(write)
        self.check_writable()
        if not hot.appender.is_writing(write):
            return self.append_validated(batch, header, stamped)
        now_ms = self._clock.steady_ms()
        base = hot.appender.finish_write(write, batch, header, leader_epoch=self.state.leader_epoch, now_ms=now_ms)
        return self._appended(base, header, stamped)

    def give_up(self, write: BatchWrite) -> None:
        """The write that a thread has begun, unless it was stopped. Waits for at most one piece of it."""
        if self.log.hot.appender.is_writing(write):
            with contextlib.suppress(StorageError):  # the next append cuts it off
                self.log.hot.appender.stop_write()

    def append_validated(self, batch: memoryview, header: BatchHeader, stamped: int) -> Appended:
        """Appends a batch that `validate` has returned."""
        now_ms = self._clock.steady_ms()  # ages are counted from it, and outlive a wall clock that is set
        hot = self.log.hot
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self._check_producer(header, now_ms)
            if duplicate is not None:
                return duplicate
        base = hot.appender.append(batch, header, leader_epoch=self.state.leader_epoch, now_ms=now_ms)
        return self._appended(base, header, stamped)

    def _appended(self, base: int, header: BatchHeader, stamped: int) -> Appended:
        hot = self.log.hot
        committed = self._committed(base, hot.end.offset)
        if header.attributes & TRANSACTIONAL_MASK:  # markers are transactional, too
            self.settle_transactions()
        return Appended(base, self.state.leader_epoch, stamped, hot.log_start_offset, committed)

    def validate(self, batch: memoryview, *, at_once: bool = False) -> tuple[memoryview, BatchHeader, int]:
        """The batch as it is to be stored, its header, and the log append time or -1; says precisely what is wrong.

        Changes nothing, so that it may run in a thread: packing a batch anew may take long, and so may inflating one, or
        naming the records that are at fault, which raise TakesLong if it is to be done `at_once`."""
        settings = self.log.hot.settings
        if at_once and LARGE_BATCH_BYTES < len(batch) <= settings.max_message_bytes:
            raise TakesLong
        now_ms = self._clock.unix_ms()
        stamped = -1
        try:
            header = validate(
                batch,
                max_bytes=settings.max_message_bytes,
                compacted=settings.cleanup_compact,
                deep=settings.validate_records,
                max_decompressed=INFLATED_AT_ONCE if at_once else None,
            )
            if settings.timestamp_type == "CreateTime":
                check_timestamps(
                    header,
                    now_ms=now_ms,
                    before_max_ms=settings.timestamp_before_max_ms,
                    after_max_ms=settings.timestamp_after_max_ms,
                )
            else:
                stamped = now_ms
        except RecordTooLarge:
            if at_once and len(batch) <= settings.max_message_bytes:
                raise TakesLong from None
            raise
        except (InvalidRecord, InvalidTimestamp) as error:
            if isinstance(error, InvalidRecord) and not settings.cleanup_compact:
                raise
            if at_once:
                raise TakesLong from None
            raise self._explained(error, batch, now_ms) from None
        if stamped >= 0 or settings.stored_as is not None or header.wrong_max_timestamp:
            batch, header = self._rewritten(batch, header, stamped)
        return batch, header, stamped

    def _rewritten(self, batch: memoryview, header: BatchHeader, stamped: int) -> tuple[memoryview, BatchHeader]:
        """The batch as it is to be stored: under the topic's codec, with `stamped` (ms) as log append time unless -1, else
        with the max timestamp of its records, where the client misstates it."""
        settings = self.log.hot.settings
        owned = None if settings.stored_as is None else recompress(batch, header, settings.stored_as)
        if owned is None:
            if stamped < 0 and not header.wrong_max_timestamp:
                return batch, header
            owned = bytearray(batch)
        elif len(owned) > settings.max_message_bytes:
            raise RecordTooLarge(
                f"the record batch has {len(owned)} bytes under compression.type, max.message.bytes is "
                f"{settings.max_message_bytes}: send smaller batches"
            )
        if stamped >= 0:
            stamp_log_append_time(owned, stamped)
        elif header.wrong_max_timestamp and header.highest_timestamp is not None:
            stamp_max_timestamp(owned, header.highest_timestamp)
        return memoryview(owned), read_header(owned)

    def _explained(
        self, error: InvalidRecord | InvalidTimestamp, batch: memoryview, now_ms: int
    ) -> InvalidRecord | InvalidTimestamp:
        """The error with the records that are at fault, where single records are."""
        settings = self.log.hot.settings
        earliest, latest = now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms
        if settings.timestamp_type == "LogAppendTime":
            earliest, latest = -UNBOUNDED - 1, UNBOUNDED
        null_keys = not settings.cleanup_compact
        named = record_error(batch, self.partition, null_keys=null_keys, earliest=earliest, latest=latest)
        return error if named is None else named

    def _check_producer(self, header: BatchHeader, now_ms: int) -> Appended | None:
        """The answer to a batch that is already in the log; None for a new one."""
        if header.transactional:
            raise InvalidTransactionState(
                f"{self.partition}: producer {header.producer_id} has no transaction on this node"
            )
        hot = self.log.hot
        known = hot.end.producers.check(header, now_ms=now_ms)
        if known is None:
            return None
        return Appended(
            known.base_offset,
            self.state.leader_epoch,
            known.timestamp if hot.settings.timestamp_type == "LogAppendTime" else -1,
            hot.log_start_offset,
            self._waiter(known.last_offset + 1),
        )

    def _committed(self, base: int, end: int) -> asyncio.Future[None] | None:
        hot, state = self.log.hot, self.state
        most = hot.settings.flush_messages
        must_flush = most != UNBOUNDED and end - hot.recovery_point >= most
        if state.appended(base, end, hold_until_flushed=must_flush) and (self._committing or self.waiters):
            self._advanced()
        if must_flush:
            self._on_flush_needed(self)
        if hot.appender.rolled:
            hot.appender.rolled = False
            self._on_roll(self)
        return None if end <= state.high_watermark else self._waiter(end)

    def _waiter(self, end: int) -> asyncio.Future[None] | None:
        if end <= self.state.high_watermark:
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing.append((end, waiter))
        return waiter

    def flushed(self, upto: int) -> None:
        """All below `upto` is on disk."""
        self.flushed_ms = self._clock.steady_ms()
        if self.state.flushed(upto):
            self._advanced()

    def settle_transactions(self) -> None:
        """Moves the last stable offset after transactions have begun or ended, or the log has changed otherwise than by an
        append. Readers of committed records wake if it rose, also where the high watermark stays."""
        producers, state = self.log.hot.end.producers, self.state
        producers.on_high_watermark(state.high_watermark)
        if state.set_first_unstable(producers.first_unstable_offset) and self.waiters:
            self._plan_wake()

    def _refuse(self, error: LogError) -> None:
        """Fails all pending acknowledgements."""
        while self._committing:
            waiter = self._committing.popleft()[1]
            if not waiter.done():
                waiter.set_exception(error)

    def _advanced(self) -> None:
        watermark = self.state.high_watermark
        if self.state.first_unstable != ALL_STABLE:
            self.settle_transactions()
        committing = self._committing
        while committing and committing[0][0] <= watermark:
            waiter = committing.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        if self.waiters:
            self._plan_wake()

    def _plan_wake(self) -> None:
        # Once per turn of the loop: fifty pipelined appends wake a waiting fetch only once.
        if not self._wake_planned:
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
        """KIP-320: a caller with an older view is fenced, one with a newer view asks too early."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.state.leader_epoch:
            return
        if current_leader_epoch < self.state.leader_epoch:
            raise FencedLeaderEpoch(
                f"{self.partition}: leader epoch {current_leader_epoch} is over, the current one is {self.state.leader_epoch}; "
                "refresh metadata"
            )
        raise UnknownLeaderEpoch(f"{self.partition}: leader epoch {current_leader_epoch} has not reached this node yet")

    def read(self, offset: int, *, max_bytes: int, isolation: Isolation, min_one: bool) -> list[FileSlice] | ColdMiss:
        end = self.readable_end(isolation)
        if offset >= end:
            if offset > self.log.end_offset:
                if self.is_recovering:
                    # An older copy: what the reader has seen beyond may be in the store, which is asked first.
                    raise OffsetNotAvailable(f"{self.partition}: offset {offset} is not known yet; retry")
                raise OffsetOutOfRange(
                    f"{self.partition}: offset {offset} is past the log end {self.log.end_offset}; "
                    "ask ListOffsets where the log ends"
                )
            if offset < self.log.log_start_offset:
                raise OffsetOutOfRange(f"{self.partition}: offset {offset} is below the log start")
            return []
        return self.log.read(offset, max_bytes=max_bytes, upto_offset=end, min_one=min_one)
