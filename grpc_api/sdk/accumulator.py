"""Records on their way into batches: what is open, what is due, what may be sent, how much is held. Pure: time is passed in.

    add ──> the open batch of its partition ──> due (full, lingered, flushed) ──> in flight ──> done | again, later

Invariants: one batch of a partition is in flight at a time, so order holds and a sequence is known when a batch is built;
`held_bytes` counts every record from `add` to the end of its batch. A batch that the node finds too large is halved.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Iterator, Sequence

from grpc_api.sdk.values import ProducerOptions, Sent
from storage_tiers.records.builder import NewRecord
from storage_tiers.types import TopicPartition

#: What a record costs beyond its key, value and headers: lengths, attributes, deltas (at most 36 bytes), and its objects.
RECORD_OVERHEAD = 100


def record_bytes(record: NewRecord) -> int:
    """An upper bound of a record's bytes in a batch, and about what it costs while it waits."""
    size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 10 + 4 * len(name) + len(value or b"")
    return size


class ProducerBatch:
    """Records of one partition. `encoded` is set while the batch is in flight: what is sent again is the same bytes; `reason`
    says why it had to be."""

    __slots__ = ("attempts", "deadline", "due", "encoded", "partition", "reason", "records", "size", "waiters")

    def __init__(self, partition: TopicPartition, due: float, deadline: float) -> None:
        self.partition = partition
        self.due = due
        self.deadline = deadline
        self.records: list[NewRecord] = []
        self.waiters: list[Future[Sent]] = []
        self.size = 0
        self.attempts = 0
        self.encoded = b""
        self.reason = ""

    def add(self, record: NewRecord, size: int, waiter: Future[Sent]) -> None:
        self.records.append(record)
        self.waiters.append(waiter)
        self.size += size

    def halves(self) -> list[ProducerBatch]:
        """The same records in two batches, due at once."""
        middle = len(self.records) // 2
        made = []
        for part in (slice(None, middle), slice(middle, None)):
            half = ProducerBatch(self.partition, 0.0, self.deadline)
            half.records, half.waiters = self.records[part], self.waiters[part]
            half.size = sum(record_bytes(record) for record in half.records)
            made.append(half)
        return made

    def succeed(self, base_offset: int) -> None:
        """-1: the offsets are not known."""
        topic, partition = self.partition
        for place, waiter in enumerate(self.waiters):
            if not waiter.done():
                waiter.set_result(Sent(topic, partition, base_offset + place if base_offset >= 0 else -1))

    def fail(self, error: Exception) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # nobody need ask for it: no complaint in the log


class PartitionQueue:
    """One partition: `sequence` is that of the next new batch, `flying` the batch in flight, which waits for `resume_at`
    after a failure that may pass."""

    __slots__ = ("flying", "queue", "resume_at", "sequence")

    def __init__(self) -> None:
        self.queue: deque[ProducerBatch] = deque()
        self.flying: ProducerBatch | None = None
        self.resume_at = 0.0
        self.sequence = 0


class Accumulator:
    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self.lanes: dict[TopicPartition, PartitionQueue] = {}
        self.held_bytes = 0
        self.flushing = 0

    def has_room(self, size: int) -> bool:
        """A record larger than the whole buffer has room when nothing else is there."""
        return self.held_bytes == 0 or self.held_bytes + size <= self._options.buffer_bytes

    def add(self, partition: TopicPartition, record: NewRecord, size: int, waiter: Future[Sent], now: float) -> bool:
        """True if a sender should look now: the batch is full, or the first that may become due."""
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = PartitionQueue()
        self.held_bytes += size
        last = lane.queue[-1] if lane.queue else None
        opened = last is None or last.size + size > self._options.batch_bytes
        if last is None or opened:
            last = ProducerBatch(partition, now + self._options.linger_s, now + self._options.delivery_timeout_s)
            lane.queue.append(last)
        last.add(record, size, waiter)
        return opened or last.size >= self._options.batch_bytes

    def take_due(self, now: float, *, only_again: bool = False) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Batches to send now, at most one of each partition, each put in flight; those that failed before come again,
        and only those if `only_again`."""
        taken = []
        for lane in self.lanes.values():
            if lane.flying is not None:
                if lane.resume_at and lane.resume_at <= now:
                    lane.resume_at = 0.0
                    taken.append((lane, lane.flying))
            elif lane.queue and not only_again and (self._full(lane) or self.flushing or lane.queue[0].due <= now):
                lane.flying = lane.queue.popleft()
                taken.append((lane, lane.flying))
        return taken

    def _full(self, lane: PartitionQueue) -> bool:
        return len(lane.queue) > 1 or lane.queue[0].size >= self._options.batch_bytes

    def next_deadline(self) -> float | None:
        """When `take_expired` may have something, if nothing is added."""
        return min((batch.deadline for lane in self.lanes.values() for batch in _first(lane)), default=None)

    def next_due(self, *, only_again: bool = False) -> float | None:
        """When `take_due` or `take_expired` may have something, if nothing is added."""
        moments = [batch.deadline for lane in self.lanes.values() for batch in _first(lane)]
        for lane in self.lanes.values():
            if lane.resume_at:
                moments.append(lane.resume_at)
            elif lane.flying is None and lane.queue and not only_again:
                moments.append(lane.queue[0].due)
        return min(moments, default=None)

    def take_expired(self, now: float) -> Iterator[tuple[ProducerBatch, bool]]:
        """(batch, was it in flight) of those whose time is up. They are no longer held."""
        for lane in self.lanes.values():
            if lane.flying is not None and lane.flying.deadline <= now:
                yield self.landed(lane), True
            while lane.queue and lane.queue[0].deadline <= now:
                batch = lane.queue.popleft()
                self.held_bytes -= batch.size
                yield batch, False

    def landed(self, lane: PartitionQueue) -> ProducerBatch:
        """The batch in flight is over, whichever way."""
        batch = lane.flying
        assert batch is not None
        lane.flying, lane.resume_at = None, 0.0
        self.held_bytes -= batch.size
        return batch

    def split(self, lane: PartitionQueue) -> None:
        """The batch in flight comes again as two halves, before all else."""
        batch = lane.flying
        assert batch is not None
        lane.flying, lane.resume_at = None, 0.0
        halves = batch.halves()
        self.held_bytes += sum(half.size for half in halves) - batch.size
        lane.queue.extendleft(reversed(halves))

    def in_flight(self) -> Sequence[tuple[PartitionQueue, ProducerBatch]]:
        return [(lane, lane.flying) for lane in self.lanes.values() if lane.flying is not None]

    def waiters(self) -> list[Future[Sent]]:
        """Of every record that is held."""
        held = [batch for lane in self.lanes.values() for batch in (lane.flying, *lane.queue) if batch is not None]
        return [waiter for batch in held for waiter in batch.waiters]

    @property
    def empty(self) -> bool:
        return all(lane.flying is None and not lane.queue for lane in self.lanes.values())


def _first(lane: PartitionQueue) -> Iterator[ProducerBatch]:
    """The batches of a lane whose time may run out first."""
    if lane.flying is not None:
        yield lane.flying
    if lane.queue:
        yield lane.queue[0]
