"""Collects records into batches, and tracks open, due and in-flight batches and their memory. Time is an argument.

    buffer.add ──> the open batch of its partition ──> due (full, lingered, flushed) ──> in flight ──> done | again, later

Invariants: each partition has at most one batch in flight, so order holds and a batch's sequence is known when it is built;
`buffer.held_bytes` counts every record from `add` to the end of its batch. A batch that the node finds too large is halved.

Threads that share an accumulator hold `lock` during each call; the calls are short.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, Protocol

from grpc_api.sdk.record_buffer import OpenBatch, RecordBuffer, record_bytes
from grpc_api.sdk.values import ProducerOptions, Sent
from storage_tiers.records.builder import build_written_batch
from storage_tiers.records.decoder import decode_batch
from storage_tiers.records.record_writer import encode_headers
from storage_tiers.types import TopicPartition

#: Makes a `Sent` from a tuple of its fields, without a call of its Python constructor.
_sent: Callable[[tuple[str, int, int]], Sent] = partial(tuple.__new__, Sent)


class Waiter(Protocol):
    """The future that `send` returned to the program, of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def exception(self) -> BaseException | None: ...


class ProducerBatch(OpenBatch):
    """A batch and its state. `encoded` is set while the batch is in flight, so a retry sends the same bytes. `reason` is the
    cause of the last retry. Once it is `over`, or all of its halves are over, every waiter has its result."""

    __slots__ = (
        "attempts",
        "deadline",
        "due",
        "encoded",
        "half",
        "over",
        "partition",
        "reason",
    )

    def __init__(self, partition: TopicPartition, due: float, deadline: float) -> None:
        super().__init__()
        self.partition = partition
        self.due = due
        self.deadline = deadline
        self.attempts = 0
        self.encoded = b""
        self.reason = ""
        self.over = False
        self.half: ProducerBatch | None = None

    def halves(self) -> list[ProducerBatch]:
        """The same records in two batches, due at once."""
        records = decode_batch(build_written_batch(self.records))
        made = []
        middle = len(records) // 2
        for part in (slice(None, middle), slice(middle, None)):
            half = ProducerBatch(self.partition, 0.0, self.deadline)
            half.waiters = self.waiters[part]
            for record in records[part]:
                headers = encode_headers(record.headers)
                half.records.append(record.key, record.value, headers, record.timestamp)
                half.held += record_bytes(record.key, record.value, headers)
            made.append(half)
        self.half = made[1]
        return made

    def succeed(self, base_offset: int) -> None:
        """`base_offset` is -1 if the offsets are unknown."""
        topic, partition = self.partition
        count = len(self.waiters)
        offsets = range(base_offset, base_offset + count) if base_offset >= 0 else repeat(-1, count)
        results = map(_sent, zip(repeat(topic), repeat(partition), offsets, strict=False))
        for waiter, sent in zip(self.waiters, results, strict=False):
            if not waiter.done():
                waiter.set_result(sent)
        self.over = True

    def fail(self, error: Exception) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # marks the exception as retrieved, because asyncio logs unretrieved ones
        self.over = True

    @property
    def is_over(self) -> bool:
        batch = self
        while batch.half is not None:
            batch = batch.half
        return batch.over


class PartitionQueue:
    """The batches of one partition: `batches` wait to be sent, oldest first; `flying` is in flight. `sequence` is the base
    sequence of the next new batch. After a retriable failure the batch in flight waits until `resume_at`, in seconds of the
    caller's clock."""

    __slots__ = ("batches", "flying", "partition", "resume_at", "sequence")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.flying: ProducerBatch | None = None
        self.resume_at = 0.0
        self.sequence = 0


class Accumulator:
    """The unanswered batches of all partitions. Applications add records in their threads, and a sender takes the batches.
    Callers hold `lock` while they use its methods or `buffer`. Times are seconds of the caller's monotonic clock."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._by_partition: dict[TopicPartition, PartitionQueue] = {}
        #: Only grows. The loop iterates over it without the lock, which a list allows.
        self.queues: list[PartitionQueue] = []
        self.buffer = RecordBuffer(options.buffer_bytes, options.batch_bytes)
        self.lock = threading.Lock()
        self.flushing = 0

    def begin_batch(self, topic: str, partition: int, now: float) -> None:
        """Begins a batch. The caller should then wake the sender: the previous batch is full, or this is the first
        batch that may become due."""
        target = TopicPartition(topic, partition)
        queue = self._by_partition.get(target)
        if queue is None:
            queue = self._by_partition[target] = PartitionQueue(target)
            self.queues.append(queue)
            self.buffer.queues.setdefault(topic, {})[partition] = queue.batches
        batch = ProducerBatch(queue.partition, now + self._options.linger_s, now + self._options.delivery_timeout_s)
        queue.batches.append(batch)

    def take_due(self, now: float, *, only_again: bool = False) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Takes the batches to be sent now, at most one per partition, and marks them as in flight. With `only_again` takes
        only retries."""
        taken = []
        for queue in self.queues:
            if queue.flying is not None:
                if queue.resume_at and queue.resume_at <= now:
                    queue.resume_at = 0.0
                    taken.append((queue, queue.flying))
            elif (
                queue.batches and not only_again and (self._full(queue) or self.flushing or queue.batches[0].due <= now)
            ):
                queue.flying = queue.batches.popleft()
                taken.append((queue, queue.flying))
        return taken

    def _full(self, queue: PartitionQueue) -> bool:
        return len(queue.batches) > 1 or self.buffer.is_full(queue.batches[0])

    def next_deadline(self) -> float | None:
        """The earliest time at which `take_expired` may return a batch, if nothing is added."""
        return min((batch.deadline for queue in self.queues for batch in _first(queue)), default=None)

    def next_due(self, *, only_again: bool = False) -> float | None:
        """The earliest time at which `take_due` or `take_expired` may return a batch, if nothing is added."""
        moments = [batch.deadline for queue in self.queues for batch in _first(queue)]
        for queue in self.queues:
            if queue.resume_at:
                moments.append(queue.resume_at)
            elif queue.flying is None and queue.batches and not only_again:
                moments.append(queue.batches[0].due)
        return min(moments, default=None)

    def take_expired(self, now: float) -> list[tuple[ProducerBatch, bool]]:
        """Removes the batches past their deadline. Returns (batch, True if it was in flight) for each."""
        expired = []
        for queue in self.queues:
            if queue.flying is not None and queue.flying.deadline <= now:
                expired.append((self.landed(queue), True))
            while queue.batches and queue.batches[0].deadline <= now:
                expired.append((self._drop_first(queue), False))
        return expired

    def take_all(self) -> list[ProducerBatch]:
        """Removes and returns every batch, in flight or not."""
        flying = [self.landed(queue) for queue in self.queues if queue.flying is not None]
        return flying + self.take_queued()

    def take_queued(self) -> list[ProducerBatch]:
        """Removes and returns every batch that is not in flight."""
        return [self._drop_first(queue) for queue in self.queues for _ in range(len(queue.batches))]

    def _drop_first(self, queue: PartitionQueue) -> ProducerBatch:
        batch = queue.batches.popleft()
        self.buffer.held_bytes -= batch.held
        return batch

    def landed(self, queue: PartitionQueue) -> ProducerBatch:
        """Removes the batch in flight, acknowledged or failed."""
        batch = queue.flying
        assert batch is not None
        queue.flying, queue.resume_at = None, 0.0
        self.buffer.held_bytes -= batch.held
        return batch

    def split(self, queue: PartitionQueue) -> None:
        """Replaces the batch in flight by its two halves, which go out before all others."""
        batch = queue.flying
        assert batch is not None
        queue.flying, queue.resume_at = None, 0.0
        # The halves together hold the same bytes as the batch.
        queue.batches.extendleft(reversed(batch.halves()))

    def in_flight(self) -> Sequence[tuple[PartitionQueue, ProducerBatch]]:
        return [(queue, queue.flying) for queue in self.queues if queue.flying is not None]

    def last_batches(self) -> list[ProducerBatch]:
        """The last unanswered batch of each partition; the partition's other batches end before it."""
        return [
            batch
            for queue in self.queues
            if (batch := queue.batches[-1] if queue.batches else queue.flying) is not None
        ]

    @property
    def empty(self) -> bool:
        return all(queue.flying is None and not queue.batches for queue in self.queues)


def _first(queue: PartitionQueue) -> Iterator[ProducerBatch]:
    """The batches of a queue that may expire first."""
    if queue.flying is not None:
        yield queue.flying
    if queue.batches:
        yield queue.batches[0]
