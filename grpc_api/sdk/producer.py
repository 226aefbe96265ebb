"""Sends records in batches over a stream to each leader. Every record is acknowledged, or fails with a reason.

    send ──> partition ──> accumulator ──> its leader's stream ──> Sent, or the LogError

`put` encodes a record into its batch on the caller's thread; the loop's only work per record is completing its future.

Invariants: records of one partition keep the order of `send`. With an idempotent producer (the default) each record is in
the log once: a batch without an answer is sent again as the same bytes under the same sequence. If a batch's outcome cannot
be known (its deadline passed, or the node forgot this producer), the batch fails with an error that says so, and the
producer takes a new identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION
from grpc_api.limits import MAX_REQUEST_BYTES
from grpc_api.messages.errors import retriable
from grpc_api.partitioning.partitioner import StickyPartitioner, partition_of_key
from grpc_api.proto import log_pb2 as pb
from grpc_api.remote_topics import RemoteTopics
from grpc_api.routes import Routes
from grpc_api.sdk.accumulator import Accumulator, PartitionQueue, ProducerBatch, Waiter
from grpc_api.sdk.checking import checked_bytes, checked_headers, checked_timestamp, checked_topic
from grpc_api.sdk.produce_streams import ProduceStreams, StreamEnded
from grpc_api.sdk.record_buffer import record_bytes
from grpc_api.sdk.values import Acks, Header, ProducerOptions, Sent
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.errors import (
    DuplicateSequence,
    InvalidPartitions,
    InvalidProducerEpoch,
    InvalidRequest,
    LogError,
    OutOfOrderSequence,
    RecordTooLarge,
    RequestTimedOut,
    UnknownProducerId,
)
from storage_tiers.records.builder import build_written_batch
from storage_tiers.records.record_writer import NO_HEADERS, encode_headers
from storage_tiers.types import NO_PRODUCER_ID

#: The most bytes of records in one message, which leave room for its other fields.
MAX_BATCH_BYTES = MAX_REQUEST_BYTES - (64 << 10)
RETRY = BackoffSettings(first=0.05, longest=2.0)

#: Errors of a node that has lost this producer's sequence.
_FORGOTTEN = (OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch)

_Group: TypeAlias = Sequence[tuple[PartitionQueue, ProducerBatch]]


class ThreadedUse(NamedTuple):
    """Functions that let threads share a producer. `new_waiter` makes the waiter that `put` returns. Waiters get their results
    inside the block of `ending`. The loop calls `has_room` when half of the buffer is free or the producer has ended."""

    new_waiter: Callable[[], Waiter]
    ending: Callable[[], AbstractContextManager[None]]
    has_room: Callable[[], None]


class Transactional(NamedTuple):
    """A transactional producer's id. `sending` is called before records are sent, and `failed` when a record has failed."""

    id: str
    sending: Callable[[], None]
    failed: Callable[[Exception], None]


class Producer:
    """Made by `Client.producer`. Use it only on the loop where it was made, except `put` with `threads`."""

    def __init__(
        self,
        routes: Routes,
        topics: RemoteTopics,
        options: ProducerOptions,
        threads: ThreadedUse | None = None,
        transactional: Transactional | None = None,
    ) -> None:
        self._transactional = transactional
        node = routes.home
        self._routes = routes
        self._topics = topics
        self._options = options
        self._clock = node.clock
        self._rng = node.rng
        self._unix_ms = node.clock.unix_ms
        self._accumulator = Accumulator(options)
        self._buffer = self._accumulator.buffer
        self._sticky: dict[str, StickyPartitioner] = {}
        self._identity = (NO_PRODUCER_ID, -1)
        self._token = b""
        self._forget = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._closed = self._has_filled = False
        loop = asyncio.get_running_loop()
        self._threads = threads
        self._ending: Callable[[], AbstractContextManager[None]] = nullcontext if threads is None else threads.ending
        # The same as asyncio's `loop.create_future`, without the cost of its Python frame.
        self._new_waiter: Callable[[], Any] = (
            partial(asyncio.Future, loop=loop) if threads is None else threads.new_waiter
        )
        self._wake_up = self._wake.set if threads is None else partial(loop.call_soon_threadsafe, self._wake.set)
        self._backoff = Backoff(RETRY, node.rng)
        self._runner = loop.create_task(self._run())

    # --- for programs -------------------------------------------------------------------------------------------------
    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Sent]:
        """Adds a record to its batch; waits only while the buffer is full. The future returns the record's partition and
        offset, or raises the LogError with which it failed. `timestamp` is in ms since 1970, by default now.

        Raises UnknownTopicOrPartition, InvalidTopic or InvalidPartitions if the record's partition does not exist,
        InvalidRecord or InvalidRequest for invalid arguments, and InvalidRequest if the producer is closed."""
        if self._has_filled:
            # The loop sends full batches. The record is added afterwards, so a caller that is cancelled here adds nothing.
            self._has_filled = False
            await asyncio.sleep(0)
        while True:
            waiter: asyncio.Future[Sent] | None = self.put(topic, value, key, headers, partition, timestamp)
            if waiter is not None:
                return waiter
            await self._changed.wait()

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int | None,
    ) -> Any:
        """`send` without waiting: the record's waiter, or None if the buffer is full."""
        if self._closed:
            raise InvalidRequest("the producer is closed; make another")
        stamp = self._unix_ms() if timestamp is None else checked_timestamp(timestamp)
        if type(topic) is not str:
            topic = checked_topic(topic)
        if type(key) is not bytes and key is not None:
            key = checked_bytes("key", key)
        if type(value) is not bytes and value is not None:
            value = checked_bytes("value", value)
        encoded = encode_headers(checked_headers(headers)) if headers else NO_HEADERS
        buffer = self._buffer
        with self._accumulator.lock:
            if partition is None and self._topics.partition_counts.get(topic) == 1:
                where = 0
            else:
                where = self._choose(topic, key, value, encoded, partition)
            waiter = buffer.add(topic, where, key, value, encoded, stamp, self._new_waiter)
            look = waiter is None or buffer.filled
            if waiter is None and buffer.has_room(record_bytes(key, value, encoded)):
                self._accumulator.begin_batch(topic, where, self._clock.monotonic())
                waiter = buffer.add(topic, where, key, value, encoded, stamp, self._new_waiter)
        if look:
            self._has_filled = True
            self._wake_up()
        return waiter

    async def flush(self) -> None:
        """Sends waiting records now; returns once every record sent so far is acknowledged or has failed."""
        with self._accumulator.lock:
            batches = self._accumulator.last_batches()
            self._accumulator.flushing += 1
        self._wake.set()
        try:
            while not all(batch.is_over for batch in batches):
                await self._changed.wait()
        finally:
            self._accumulator.flushing -= 1

    def begin(self, identity: tuple[int, int]) -> None:
        """Gives this identity to records that are sent from now on. The producer must hold no record: a transactional producer
        calls it between two transactions."""
        self._identity = identity
        self._begin_sequences()

    async def drop(self, error: LogError) -> None:
        """Fails the records that are not in flight; returns once the others are acknowledged or have failed."""
        with self._accumulator.lock:
            batches = self._accumulator.take_queued()
        for batch in batches:
            self._fail(batch, error)
        self._tell()
        await self.flush()

    async def close(self) -> None:
        """Flushes, then ends the producer."""
        if not self._closed:
            self._closed = True
            await self.flush()
        self._runner.cancel()
        with suppress(asyncio.CancelledError):
            await self._runner

    # --- choosing a partition -----------------------------------------------------------------------------------------
    def _choose(self, topic: str, key: bytes | None, value: bytes | None, headers: bytes, partition: int | None) -> int:
        count = self._topics.partition_counts.get(topic) or self._topics.partition_count(topic)
        if partition is not None:
            if not isinstance(partition, int) or not 0 <= partition < count:
                raise InvalidPartitions(f"{topic} has partitions 0 to {count - 1}, not {partition!r}")
            return partition
        if key is not None:
            return partition_of_key(key, count)
        size = record_bytes(None, value, headers)
        if not self._accumulator.buffer.has_room(size):
            return 0  # any partition: nothing is added now, and the record must count towards its partition only once
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = StickyPartitioner(self._options.batch_bytes, self._rng)
        return sticky.partition(size, count)

    # --- the stream ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            while True:
                while self._accumulator.empty:
                    self._wake.clear()
                    await self._wake.wait()
                try:
                    await self._stream()
                except StreamEnded as ended:
                    self._stream_failed(ended.error)
                    await self._clock.sleep(self._backoff.next_delay())
        except Exception as defect:
            self._closed = True
            self._fail_all(
                LogError(f"the producer failed ({defect!r}); records in flight may or may not be in the log")
            )
            raise

    def _fail_all(self, error: LogError) -> None:
        with self._accumulator.lock:
            batches = self._accumulator.take_all()
        for batch in batches:
            self._fail(batch, error)
        self._tell()

    def _stream_failed(self, error: LogError) -> None:
        """Batches in flight are sent again on the next stream, unless they expired or the error is final."""
        now = self._clock.monotonic()
        for queue, batch in self._accumulator.in_flight():
            if retriable(error):
                queue.resume_at, batch.reason = now, str(error)
            else:
                self._lose_identity()
                self._fail(self._landed(queue), error)
        if not retriable(error):
            self._token = b""
        self._expire(now)
        self._tell()

    async def _stream(self) -> None:
        """Sends batches over streams until the streams must be opened again or the identity must change."""
        # Waits for a lone node without a limit: records have their own deadline.
        streams = ProduceStreams(self._routes, idempotent=self._options.idempotent and self._transactional is None)
        opening = asyncio.ensure_future(streams.open(self._token))
        opening.add_done_callback(self._wake_sender)
        reader: asyncio.Future[None] | None = None
        try:
            while not opening.done():
                self._wake.clear()
                self._expire(self._clock.monotonic())
                with self._accumulator.lock:
                    deadline = self._accumulator.next_deadline()
                await self._woken(deadline)
            self._begin(opening.result())
            reader = asyncio.ensure_future(self._read(streams))
            reader.add_done_callback(self._wake_sender)
            await self._write(streams, reader)
        finally:
            for task in (opening, reader):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
            await streams.close()

    def _begin(self, opened: pb.Opened) -> None:
        if self._transactional is not None:
            return
        identity = (opened.producer_id, opened.producer_epoch)
        if identity != self._identity:
            self._forget = False
            self._begin_sequences()
        self._identity, self._token = identity, opened.token

    def _begin_sequences(self) -> None:
        with self._accumulator.lock:
            for queue in self._accumulator.queues:
                queue.sequence = 0

    def _lose_identity(self) -> None:
        """Drops this producer's identity; the next stream gets another one. Not for transactional producers, whose identity
        changes with their transactions."""
        self._forget = self._transactional is None

    async def _write(self, streams: ProduceStreams, reader: asyncio.Future[None]) -> None:
        while not reader.done():
            self._wake.clear()
            now = self._clock.monotonic()
            self._expire(now)
            if self._forget and not self._accumulator.in_flight():
                self._token = b""
                return
            for group in self._due_groups(now, streams):
                streams.write(group, group[0][0].partition, self._request(group))
            with self._accumulator.lock:
                due = self._accumulator.next_due(only_again=self._forget)
            await self._woken(due)
        await reader

    def _wake_sender(self, _: asyncio.Future[Any]) -> None:
        self._wake.set()

    async def _woken(self, due: float | None) -> None:
        """Returns when the sender is woken, or at the time `due`."""
        alarm = None
        if due is not None:
            pause = max(0.0, due - self._clock.monotonic())
            alarm = asyncio.get_running_loop().call_later(pause, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if alarm is not None:
                alarm.cancel()

    def _due_groups(self, now: float, streams: ProduceStreams) -> Iterator[_Group]:
        """Batches to send now, those of one leader together, as many as one message holds."""
        groups: dict[Hashable, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        sizes: dict[Hashable, int] = {}
        with self._accumulator.lock:
            due = self._accumulator.take_due(now, only_again=self._forget)
        for queue, batch in due:
            if not batch.encoded:
                batch.encoded = self._encode(queue, batch)
            if len(batch.encoded) > MAX_BATCH_BYTES:
                self._too_large(
                    queue, batch, RecordTooLarge(f"a message holds at most {MAX_BATCH_BYTES} bytes of records")
                )
                continue
            leader = streams.leader(queue.partition)
            if sizes.get(leader, 0) + len(batch.encoded) > MAX_BATCH_BYTES:
                yield groups.pop(leader)
                del sizes[leader]
            groups.setdefault(leader, []).append((queue, batch))
            sizes[leader] = sizes.get(leader, 0) + len(batch.encoded)
        yield from groups.values()

    def _encode(self, queue: PartitionQueue, batch: ProducerBatch) -> bytes:
        producer_id, producer_epoch = self._identity
        return build_written_batch(
            batch.records,
            codec=self._options.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=queue.sequence if self._options.idempotent else -1,
            transactional=self._transactional is not None,
        )

    def _request(self, group: _Group) -> pb.ProduceRequest:
        if self._transactional is not None:
            self._transactional.sending()
        return pb.ProduceRequest(
            appends=[
                pb.Append(topic=batch.partition.topic, partition=batch.partition.partition, batch=batch.encoded)
                for _, batch in group
            ],
            acks=pb.ACKS_ALL if self._options.acks is Acks.ALL else pb.ACKS_LEADER,
            transactional_id=None if self._transactional is None else self._transactional.id,
            transaction_version=0 if self._transactional is None else EPOCH_PER_TRANSACTION,
        )

    # --- answers ------------------------------------------------------------------------------------------------------
    async def _read(self, streams: ProduceStreams) -> None:
        while True:
            group, results = await streams.read()
            for (queue, batch), result in zip(group, results, strict=True):
                if queue.flying is batch:  # otherwise it expired meanwhile
                    self._answered(queue, batch, result)
            # The next batch is sent before callers get their answers, so the node has work while they add records.
            self._wake.set()
            self._tell()

    def _answered(self, queue: PartitionQueue, batch: ProducerBatch, result: Appended | LogError) -> None:
        if isinstance(result, (Appended, DuplicateSequence)):
            queue.sequence = (queue.sequence + batch.records.count) & 0x7FFFFFFF
            landed = self._landed(queue)
            with self._ending():
                landed.succeed(result.base_offset if isinstance(result, Appended) else -1)
            self._backoff.succeeded()
        elif retriable(result):
            pause = Backoff(RETRY, self._rng)
            pause.failures = batch.attempts
            batch.attempts += 1
            batch.reason = str(result)
            queue.resume_at = self._clock.monotonic() + pause.next_delay()
        elif isinstance(result, RecordTooLarge):
            self._too_large(queue, batch, result)
        else:
            if isinstance(result, _FORGOTTEN):
                self._lose_identity()
            self._fail(self._landed(queue), result)

    def _too_large(self, queue: PartitionQueue, batch: ProducerBatch, error: RecordTooLarge) -> None:
        """Splits the batch in two; fails it if it has a single record. None of its records is in the log."""
        if batch.records.count > 1:
            with self._accumulator.lock:
                self._accumulator.split(queue)
            self._wake.set()
        else:
            self._fail(self._landed(queue), error)
            self._tell()

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        if self._transactional is not None:
            self._transactional.failed(error)
        with self._ending():
            batch.fail(error)

    def _landed(self, queue: PartitionQueue) -> ProducerBatch:
        with self._accumulator.lock:
            return self._accumulator.landed(queue)

    def _expire(self, now: float) -> None:
        with self._accumulator.lock:
            expired = self._accumulator.take_expired(now)
        for batch, flew in expired:
            if flew and self._options.idempotent:
                self._lose_identity()
            known = "the records may or may not be in the log" if flew else "the records were not sent"
            why = f"; {batch.reason}" if batch.reason else ""
            late = f"not acknowledged within {self._options.delivery_timeout_s} s"
            self._fail(batch, RequestTimedOut(f"{batch.partition}: {late}, {known}{why}"))
            self._tell()

    def _tell(self) -> None:
        """Wakes callers that wait for room or for acknowledgements."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._threads is not None and (
            self._closed or self._accumulator.buffer.held_bytes <= self._options.buffer_bytes // 2
        ):
            self._threads.has_room()
