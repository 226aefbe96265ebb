"""Holds transactional batches until the coordinator has confirmed that the partition belongs to the transaction (KIP-890).

Only the batch that begins the transaction in its partition needs this confirmation; later batches find the transaction open.
The batches of one request are verified together.

Once a transaction is open, all batches that wait behind its first one are appended in one turn of the loop, in slices of
SLICE_S. One batch in each turn would be too slow for a producer that always has some in flight: each new batch would find
others waiting, so the whole transaction would pass through the lane.

Invariants: the batches of one producer are appended to a partition in the order of their arrival, so a batch waits while an
earlier one waits here. Batches of other producers, markers and coordinators' records pass the waiting ones. A waiting batch
keeps a copy of its bytes, or the sender's buffer if it is large. The kept bytes are at most VERIFYING_BYTES for the whole node;
beyond that, producers get a retriable error. A batch waits only for seconds, because the coordinator answers or refuses within
that time. When the node stops leading the partition, all waiting batches fail at once with the partition's error. A batch that
is being appended gets the answer of its append.
"""

from __future__ import annotations

import asyncio
import functools
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from grpc_api.contract.coordinator_errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from service.broker.appending.append_queues import Done
from service.broker.appending.verification_requests import (
    AsksCoordinator,
    asking,
    check_decided_before,
    refusals,
)
from service.broker.partition.partition import Partition
from service.broker.partition.verification import Verification
from storage_tiers.errors import LogError, NotEnoughReplicas, RequestTimedOut
from storage_tiers.hot.settings import LARGE_BATCH_BYTES
from storage_tiers.records.batch import ATTRIBUTES, HEADER_BYTES, PRODUCER_ID, TRANSACTIONAL_MASK
from storage_tiers.turns import SLICE_S

#: Most bytes of batches that wait for a coordinator's answer.
VERIFYING_BYTES = 64 << 20
_PRODUCER = struct.Struct(">qhi")
# BatchProducer(...) would cost three times as much, for every transactional batch.
_new_producer = tuple.__new__
#: Errors that older clients do not retry. These clients get a retriable error instead (Kafka:
#: ReplicaManager.handleProduceAppend).
_RETRIABLE = (ConcurrentTransactions, CoordinatorLoading, CoordinatorNotAvailable, NotCoordinator)


class BatchProducer(NamedTuple):
    """A transactional batch's producer and first sequence, read from the batch's header."""

    id: int
    epoch: int
    sequence: int


def transactional_producer(batch: memoryview) -> BatchProducer | None:
    """Returns None if the batch is not transactional, or is too short for a header. Validation reports a short batch."""
    if len(batch) < HEADER_BYTES or not batch[ATTRIBUTES + 1] & TRANSACTIONAL_MASK:
        return None
    return _new_producer(BatchProducer, _PRODUCER.unpack_from(batch, PRODUCER_ID))


class _Waiting:
    """One batch in the lane."""

    __slots__ = (
        "batch",
        "done",
        "has_ended",
        "is_handed_on",
        "partition",
        "producer",
        "refused",
        "transaction",
        "verification",
    )

    def __init__(
        self,
        partition: Partition,
        batch: memoryview,
        producer: BatchProducer,
        transaction: ProducerTransaction,
        done: Done,
        refused: Done,
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.producer = producer
        self.transaction = transaction
        self.done = done
        self.refused = refused
        self.verification: Verification | None = None
        self.is_handed_on = False
        self.has_ended = False

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun in the partition. If it has, no verification is needed."""
        return self.partition.is_in_transaction(self.producer.id, self.producer.epoch)


class _ProducerQueue:
    """The batches of one producer for one partition, in the order of their arrival. `forget` removes the callback that is
    registered with the partition; it is None while no callback is registered. While `is_advancing`, the lane starts one batch
    after the other, so the end of a batch need not start the next one."""

    __slots__ = ("forget", "is_advancing", "jobs")

    def __init__(self) -> None:
        self.jobs: deque[_Waiting] = deque()
        self.forget: Callable[[], None] | None = None
        self.is_advancing = False


class AppendLane:
    """Used on the event loop only. `append` appends a batch without verifying it, now or later."""

    def __init__(self, coordinator: AsksCoordinator, append: Callable[[Partition, memoryview, Done], None]) -> None:
        self._coordinator = coordinator
        self._append = append
        self._waiting: dict[tuple[Partition, int], _ProducerQueue] = {}
        self._beginning: list[_Waiting] = []
        #: Bytes of waiting batches.
        self.held_bytes = 0

    def must_wait(self, partition: Partition, producer: BatchProducer) -> bool:
        """Whether a batch of this producer has to be verified or queued."""
        if self._waiting and (partition, producer.id) in self._waiting:
            return True
        return not partition.is_in_transaction(producer.id, producer.epoch)

    def add(
        self,
        partition: Partition,
        batch: memoryview,
        producer: BatchProducer,
        transaction: ProducerTransaction,
        done: Done,
        refused: Done,
    ) -> None:
        """Appends the batch later. `done` receives the log's result. `refused` receives the error if the batch never reaches
        the log: the coordinator's error, the partition's if the node stops leading it, or RequestTimedOut if too many bytes
        already wait. Call `begin` after the last batch of a request. The partition must accept records now."""
        if self.held_bytes + len(batch) > VERIFYING_BYTES:
            text = f"{partition.partition}: batches of {self.held_bytes} bytes wait for coordinators; send again"
            refused(RequestTimedOut(text), batch)
            return
        kept = batch if len(batch) > LARGE_BATCH_BYTES else memoryview(bytes(batch))
        self.held_bytes += len(kept)
        job = _Waiting(partition, kept, producer, transaction, done, refused)
        key = partition, producer.id
        queue = self._waiting.get(key)
        if queue is None:
            queue = self._waiting[key] = _ProducerQueue()
        queue.jobs.append(job)
        if queue.forget is None:
            queue.forget = partition.on_resigned(functools.partial(self._resigned, key))
        if len(queue.jobs) == 1:
            self._beginning.append(job)

    def begin(self) -> None:
        """Starts the verification of each batch that was added since the last call and is first in its producer's queue."""
        beginning, self._beginning = self._beginning, []
        requests: dict[tuple[ProducerTransaction, int, int], list[_Waiting]] = {}
        for job in beginning:
            requests.setdefault((job.transaction, job.producer.id, job.producer.epoch), []).append(job)
        for jobs in requests.values():
            self._ask(jobs)

    def _ask(self, jobs: Sequence[_Waiting]) -> None:
        transaction, producer = jobs[0].transaction, jobs[0].producer
        adds = transaction.version >= EPOCH_PER_TRANSACTION
        asked = []
        for job in jobs:
            try:
                check_decided_before(job.partition, ProducerIdAndEpoch(producer.id, producer.epoch))
                job.verification = job.partition.verifications.begin(
                    producer.id, producer.epoch, job.producer.sequence, adds=adds
                )
            except LogError as error:
                self._refuse(job, error)
            else:
                asked.append(job)
        if not asked:
            return
        partitions = [job.partition.partition for job in asked]
        answer = asking(self._coordinator, transaction, ProducerIdAndEpoch(producer.id, producer.epoch), partitions)
        if answer.done():
            self._answered(asked, answer)
        else:
            answer.add_done_callback(functools.partial(self._answered, asked))

    def _answered(self, jobs: Sequence[_Waiting], answer: asyncio.Future[PartitionsAdded]) -> None:
        refused = refusals(answer, [job.partition.partition for job in jobs], jobs[0].transaction)
        for job in jobs:
            if job.has_ended:  # the node stopped leading the partition meanwhile
                continue
            why = refused.get(job.partition.partition)
            if why is not None:
                self._refuse(job, _retriable(why, job.transaction))
                continue
            assert job.verification is not None
            job.partition.verifications.verified(job.verification)
            self._hand_on(job)

    def _refuse(self, job: _Waiting, error: LogError) -> None:
        self._end(job)
        job.refused(error, job.batch)

    def _hand_on(self, job: _Waiting) -> None:
        job.is_handed_on = True
        self._append(job.partition, job.batch, functools.partial(self._leave, job))

    def _leave(self, job: _Waiting, result: Appended | LogError, batch: memoryview) -> None:
        self._end(job)
        job.done(result, batch)

    def _end(self, job: _Waiting) -> None:
        """Removes the producer's first batch and starts its next one."""
        key = job.partition, job.producer.id
        queue = self._waiting[key]
        queue.jobs.popleft()
        self._release(job)
        if not queue.jobs:
            self._forget(key, queue)
        elif not queue.is_advancing:
            asyncio.get_running_loop().call_soon(self._advance, queue)

    def _forget(self, key: tuple[Partition, int], queue: _ProducerQueue) -> None:
        del self._waiting[key]
        if queue.forget is not None:
            queue.forget()

    def _release(self, job: _Waiting) -> None:
        job.has_ended = True
        self.held_bytes -= len(job.batch)
        if job.verification is not None:
            job.partition.verifications.release(job.verification)

    def _resigned(self, key: tuple[Partition, int], error: LogError) -> None:
        """The node no longer leads the partition, or leads it with another log: all waiting batches end."""
        queue = self._waiting[key]
        queue.forget = None
        kept = 1 if queue.jobs[0].is_handed_on else 0  # it is being appended: the append answers it
        ended = list(queue.jobs)[kept:]
        for job in ended:
            queue.jobs.pop()
            self._release(job)
        if not queue.jobs:
            self._forget(key, queue)
        for job in ended:
            job.refused(error, job.batch)

    def _advance(self, queue: _ProducerQueue) -> None:
        """Starts the producer's batches until one has to wait, or the slice ends. The queue is empty if the node has stopped
        leading the partition."""
        until = time.perf_counter() + SLICE_S  # noqa: TID251 - the shell
        queue.is_advancing = True
        try:
            while queue.jobs:
                job = queue.jobs[0]
                if job.is_open:
                    self._hand_on(job)
                else:
                    self._ask((job,))
                if not job.has_ended:
                    return  # its end starts the next batch
                if queue.jobs and time.perf_counter() >= until:  # noqa: TID251 - the shell
                    asyncio.get_running_loop().call_soon(self._advance, queue)
                    return
        finally:
            queue.is_advancing = False


def _retriable(error: LogError, transaction: ProducerTransaction) -> LogError:
    """Maps a transient coordinator error to a code that every producer retries."""
    if isinstance(error, ConcurrentTransactions) and transaction.version >= EPOCH_PER_TRANSACTION:
        return error
    if isinstance(error, _RETRIABLE):
        return NotEnoughReplicas(f"Unable to verify the partition has been added to the transaction: {error}")
    return error
