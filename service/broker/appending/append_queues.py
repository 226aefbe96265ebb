"""Moves slow appends from the event loop to threads: long validations, and writes of larger batches.

A batch of 2 KB can inflate to 64 MB. Naming the invalid records of a refused batch takes 10 ms. Recompressing a megabyte in the
topic's codec takes from 2 ms (lz4) to a second (zstd's highest level). None of this may block the event loop. If the page
cache is slow, copying 64 KiB to it is more than half of a request's cost. In that case threads copy it (`WriteCost`), while the
loop receives, checks and answers requests.

Invariants: the batches of one producer are appended to a partition in the order of their arrival; a small batch, too, waits
for earlier ones. The same holds for all batches without a producer id, because their connections are not known here. Batches of
other producers, markers and coordinators' records pass those that are being validated. Each partition writes one batch at a
time, and the batch joins the log only when the loop commits it there. If a batch fails, the next one still has its turn.

A waiting batch keeps a copy of its bytes, or the sender's buffer if it is large. The kept bytes are at most MAX_HELD_BYTES for
the whole node; beyond that, producers get a retriable error. Batches that need no validation take at most WRITING_BYTES of
these bytes. Beyond that, the loop itself writes them, unless they wait behind a batch of their producer that is being
validated, or behind a large one. The loop spends at most SLICE_S a turn on one queue.

Log append times may not rise with offsets when several producers' batches are recompressed. A batch to be recompressed may have
to wait for a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from grpc_api.contract.log import Appended
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from storage_tiers import events
from storage_tiers.errors import LogError, RequestTimedOut
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.settings import LARGE_BATCH_BYTES
from storage_tiers.records.batch import HEADER_BYTES, PRODUCER_ID, BatchHeader
from storage_tiers.turns import SLICE_S
from storage_tiers.types import NO_PRODUCER_ID

log = logging.getLogger(__name__)

#: Batches validated at the same time.
VALIDATING_THREADS = 2
#: Batches handed to validating threads: one per thread, and as many queued behind them.
_GIVEN = 2 * VALIDATING_THREADS
#: Bytes of rewritten batches that wait to be appended; beyond that, no other batch is validated.
VALIDATED_BYTES = 64 << 20
#: Batches written by threads at the same time.
WRITING_THREADS = 2
#: Bytes of waiting batches, as they were sent; beyond that, producers get a retriable error.
MAX_HELD_BYTES = 256 << 20
#: Most bytes of waiting batches that need no validation. They count against MAX_HELD_BYTES, too.
WRITING_BYTES = 16 << 20

#: Called on the loop with the result of an append and the bytes of its batch.
Done = Callable[[Appended | LogError, memoryview], None]
Validated = tuple[memoryview, BatchHeader, int]
Result = TypeVar("Result")
_PRODUCER_ID = struct.Struct(">q")

#: Bounds of the cost of larger appends on the loop, in seconds per GB. Above the first, threads write the batches. Below the
#: second, the loop writes them again. A page cache with free memory costs 0.65. One that must reclaim memory, or wait for the
#: disk, costs 2 or more.
SLOW_S_PER_GB, FAST_S_PER_GB = 1.6, 1.1
#: While threads write, the loop writes one batch in this many, to measure the cost.
PROBED = 32
#: Weight of a new sample in the average: small while the loop writes all batches, large while it only probes.
_WEIGHT, _WEIGHT_OF_PROBE = 1 / 32, 1 / 4
_MOST_S_PER_GB = 4 * SLOW_S_PER_GB


def producer_id_of(batch: memoryview) -> int:
    """The producer id in the batch's header. A batch too short for a header has none, and is refused later."""
    if len(batch) < HEADER_BYTES:
        return NO_PRODUCER_ID
    found: int = _PRODUCER_ID.unpack_from(batch, PRODUCER_ID)[0]
    return found


class WriteCost:
    """The recent cost of larger appends on the loop, and whether threads should write them.

    A hand-over wakes a thread and moves the batch to another processor's cache, so it pays off only where writing is slow."""

    def __init__(self) -> None:
        self.s_per_gb = 0.0
        self.is_slow = False
        self._since_probe = 0

    def took(self, size: int, seconds: float) -> None:
        """Counts an append of `size` bytes. A sample is capped, so that a single outlier does not decide."""
        cost = min(seconds * 1e9 / size, _MOST_S_PER_GB)
        self.s_per_gb += (cost - self.s_per_gb) * (_WEIGHT_OF_PROBE if self.is_slow else _WEIGHT)
        self.is_slow = self.s_per_gb > (FAST_S_PER_GB if self.is_slow else SLOW_S_PER_GB)

    def for_thread(self) -> bool:
        """Whether a thread should write the next batch."""
        if not self.is_slow:
            return False
        self._since_probe += 1
        if self._since_probe < PROBED:
            return True
        self._since_probe = 0
        return False


class _Append:
    """One batch in a partition's queue. It is validated unless `found` is set, written by a thread if the loop should not write
    it, and then appended."""

    __slots__ = (
        "batch",
        "done",
        "found",
        "is_plain",
        "partition",
        "producer_id",
        "rewritten_bytes",
        "validated",
        "write",
    )

    def __init__(self, partition: Partition, batch: memoryview, header: BatchHeader | None, done: Done) -> None:
        self.partition = partition
        self.batch = batch
        self.producer_id = producer_id_of(batch)
        self.is_plain = header is not None
        self.found: Validated | Exception | None = None if header is None else (batch, header, -1)
        self.done = done
        self.validated: Validated | Exception | None = None
        #: Bytes of the rewritten batch, until it is appended.
        self.rewritten_bytes = 0
        self.write: BatchWrite | None = None

    def validate(self) -> None:
        """Runs in a thread. The loop moves `validated` to `found` when it wakes."""
        try:
            self.validated = self.partition.validate(self.batch)
        except Exception as error:  # noqa: BLE001 - the loop handles it
            self.validated = error

    def what_was_found(self) -> Validated:
        """The result of validation. Raises the error if it failed."""
        if isinstance(self.found, Exception):
            raise self.found
        assert self.found is not None
        return self.found

    def forget(self) -> None:
        """Breaks reference cycles, which would keep the bytes until a collection."""
        self.found = self.validated = self.write = None


class _PartitionQueue:
    """The batches of one partition, in order for each producer. `ready` has the validated batches that are first in their
    producer's queue, in the order in which they became ready. The head of `ready` is being appended."""

    __slots__ = ("of_producer", "ready")

    def __init__(self) -> None:
        self.of_producer: dict[int, deque[_Append]] = {}
        self.ready: deque[_Append] = deque()

    def must_wait(self, producer_id: int) -> bool:
        """Whether a batch of this producer has to wait for others."""
        return bool(self.ready) or producer_id in self.of_producer

    def add(self, job: _Append) -> None:
        self.of_producer.setdefault(job.producer_id, deque()).append(job)
        self.validated(job)

    def validated(self, job: _Append) -> None:
        """Makes a validated batch ready if it is its producer's first. Otherwise `leave` does so later."""
        if job.found is not None and self.of_producer[job.producer_id][0] is job:
            self.ready.append(job)

    def leave(self, job: _Append) -> None:
        """Removes the head of `ready`, which was appended or refused. The producer's next batch becomes ready if it is
        validated."""
        self.ready.popleft()
        jobs = self.of_producer[job.producer_id]
        jobs.popleft()
        if jobs:
            self.validated(jobs[0])
        else:
            del self.of_producer[job.producer_id]


class AppendQueues:
    """Used on the event loop only, except for its threads' own work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._validators = ThreadPoolExecutor(VALIDATING_THREADS, thread_name_prefix="validate")
        self._queues: dict[Partition, _PartitionQueue] = {}
        #: Bytes of waiting batches, as they are kept.
        self.held_bytes = 0
        #: The part of `held_bytes` in batches that need no validation.
        self.writing_bytes = 0
        #: Number of batches handed to writing threads so far.
        self.written_by_threads = 0
        self.cost = WriteCost()
        self._writes: queue.SimpleQueue[tuple[_Append, BatchWrite] | None] = queue.SimpleQueue()
        self._writers: list[threading.Thread] = []
        # Work that a thread has finished (a write or a validation), and whether the loop has been woken for it.
        self._ready: deque[tuple[_Append, BatchWrite | None]] = deque()
        self._is_woken = False
        # Partitions whose slice ended before their queue was empty.
        self._resting: dict[Partition, None] = {}
        self._unvalidated: deque[_Append] = deque()
        self._given = 0
        #: Bytes of rewritten batches that wait to be appended.
        self.validated_bytes = 0
        self._emptied: asyncio.Future[None] | None = None

    def at_once(self, partition: Partition, batch: memoryview) -> Appended | None:
        """Appends a larger batch on the loop, as `Partition.append` does. Returns None if a thread should write the batch."""
        if self.writing_bytes <= WRITING_BYTES and self.cost.for_thread():
            return None
        began = time.thread_time()
        appended = partition.append(batch)
        self.cost.took(len(batch), time.thread_time() - began)
        return appended

    def append(self, partition: Partition, batch: memoryview, done: Done) -> None:
        """Appends a batch as `Partition.append` does, but possibly later. `done` receives the result, possibly before this
        returns. The result is RequestTimedOut if too many bytes already wait."""
        header, waits = partition.plain(batch), self._must_wait(partition, batch)
        is_too_much = self.held_bytes + len(batch) > MAX_HELD_BYTES
        is_by_loop = is_too_much or self.writing_bytes + len(batch) > WRITING_BYTES
        if header is not None and waits and is_by_loop:
            self._advance(partition, at_once=True)
            waits = self._must_wait(partition, batch)
        if is_too_much and (header is None or waits):
            text = f"{partition.partition}: batches of {self.held_bytes} bytes wait to be appended; send again"
            done(RequestTimedOut(text), batch)
            return
        self._keep(partition, batch, header, done)
        if not waits and header is not None:
            self._advance(partition, at_once=is_by_loop, is_asked=True)

    def _must_wait(self, partition: Partition, batch: memoryview) -> bool:
        waiting = self._queues.get(partition)
        return waiting is not None and waiting.must_wait(producer_id_of(batch))

    def _keep(self, partition: Partition, batch: memoryview, header: BatchHeader | None, done: Done) -> None:
        kept = batch if len(batch) > LARGE_BATCH_BYTES else memoryview(bytes(batch))
        job = _Append(partition, kept, header, done)
        self.held_bytes += len(kept)
        partition.queued += 1
        partition.queues = True
        waiting = self._queues.get(partition)
        if waiting is None:
            waiting = self._queues[partition] = _PartitionQueue()
        waiting.add(job)
        if job.is_plain:
            self.writing_bytes += len(kept)
        else:
            self._unvalidated.append(job)
            self._validate_more()

    def _validate_more(self) -> None:
        """Validates in order of arrival, so that a validated batch never waits for one that the bound holds back."""
        while self._unvalidated and self._given < _GIVEN and self.validated_bytes <= VALIDATED_BYTES:
            self._given += 1
            job = self._unvalidated.popleft()
            try:
                self._validators.submit(job.validate).add_done_callback(functools.partial(self._tell_validated, job))
            except RuntimeError as error:  # the machine has no thread left
                job.validated = error
                self._report(job, None)

    def _tell_validated(self, job: _Append, _: Future[None]) -> None:
        self._report(job, None)

    async def close(self) -> None:
        """Appends all waiting batches, then ends the threads."""
        if self._queues:
            self._emptied = self._loop.create_future()
            await self._emptied
        self._validators.shutdown()
        for _ in self._writers:
            self._writes.put(None)
        for writer in self._writers:
            writer.join()

    # --- threads ------------------------------------------------------------------------------------------------------
    def _hand_over(self, job: _Append, write: BatchWrite) -> None:
        if len(self._writers) < WRITING_THREADS:
            writer = threading.Thread(target=self._work, name=f"append-{len(self._writers)}", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the machine has no thread left
                if not self._writers:
                    write.run()
                    self._report(job, write)
                    return
            else:
                self._writers.append(writer)
        self._writes.put((job, write))
        self.written_by_threads += 1

    def _work(self) -> None:
        while (handed := self._writes.get()) is not None:
            job, write = handed
            write.run()
            self._report(job, write)
            del handed, job, write  # else the batch would stay in memory until the next one arrives

    def _report(self, job: _Append, write: BatchWrite | None) -> None:
        """May be called from any thread. Wakes the loop once for all work that is finished before the loop runs."""
        self._ready.append((job, write))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_ready)

    # --- on the loop --------------------------------------------------------------------------------------------------
    def _take_ready(self) -> None:
        self._is_woken = False
        while self._ready:
            job, write = self._ready.popleft()
            waiting = self._queues.get(job.partition)
            if write is None:
                self._accept_validated(job)
                if waiting is not None:
                    waiting.validated(job)
            if waiting is not None and waiting.ready and waiting.ready[0] is job:
                if write is not None:
                    self._leave(waiting, job, self._result(self._finish, job))
                self._advance(job.partition)

    def _accept_validated(self, job: _Append) -> None:
        """Accepts the validated batch of a job. Called on the loop for each notification of a thread, before the job
        advances."""
        found = job.found = job.validated
        if isinstance(found, tuple) and found[0] is not job.batch:
            job.rewritten_bytes = len(found[0])
            self.validated_bytes += job.rewritten_bytes
        self._given -= 1
        self._validate_more()

    def _advance(self, partition: Partition, *, at_once: bool = False, is_asked: bool = False) -> None:
        """Appends a partition's batches that are ready, until one needs a thread or the slice ends. With `at_once` the loop
        itself writes batches that are not large, and waits for writes that a thread has begun. `is_asked` means that a thread
        should write the first batch, so the cost is not checked again."""
        waiting = self._queues.get(partition)
        until = time.perf_counter() + SLICE_S  # noqa: TID251 - the shell
        while waiting is not None and waiting.ready:
            job = waiting.ready[0]
            is_large = isinstance(job.found, tuple) and len(job.found[0]) > LARGE_BATCH_BYTES
            is_by_loop = not is_large and (at_once or (not is_asked and self._is_cheap(job)))
            is_asked = False
            if job.write is not None and not is_by_loop:
                return
            begun = self._result(self._append_now if is_by_loop else self._begin, job)
            if job.write is not None:
                # Waiting for a thread does not count against the slice.
                until = time.perf_counter() + SLICE_S  # noqa: TID251 - the shell
            if isinstance(begun, BatchWrite):
                job.write = begun
                self._hand_over(job, begun)
                return
            self._leave(waiting, job, begun)
            if waiting.ready and time.perf_counter() >= until:  # noqa: TID251 - the shell
                self._rest(partition)
                return

    def _is_cheap(self, job: _Append) -> bool:
        """Whether the loop should write the batch at the head of its queue. Without this check, a queue that is never empty
        would stay with the threads for ever."""
        return job.is_plain and job.write is None and len(job.batch) >= WRITTEN_BY_THREAD and not self.cost.for_thread()

    def _rest(self, partition: Partition) -> None:
        """Postpones the partition's queue until the loop has served all sockets and its turn comes."""
        if not self._resting:
            self._loop.call_soon(self._advance_next)
        self._resting[partition] = None

    def _advance_next(self) -> None:
        partition = next(iter(self._resting))
        del self._resting[partition]
        if self._resting:
            self._loop.call_soon(self._advance_next)
        self._advance(partition)

    def _leave(self, waiting: _PartitionQueue, job: _Append, result: Appended | LogError) -> None:
        partition = job.partition
        waiting.leave(job)
        self.held_bytes -= len(job.batch)
        if job.is_plain:
            self.writing_bytes -= len(job.batch)
        self.validated_bytes -= job.rewritten_bytes
        partition.queued -= 1
        if not waiting.of_producer:
            del self._queues[partition]
            if self._emptied is not None and not self._queues and not self._emptied.done():
                self._emptied.set_result(None)
        partition.settle_queues()
        job.done(result, job.batch)
        job.forget()
        self._validate_more()

    # --- one batch ----------------------------------------------------------------------------------------------------
    def _result(self, step: Callable[[_Append], Result], job: _Append) -> Result | LogError:
        """Returns the result of a step. An unexpected error is reported to the producer, so that the batch does not block its
        queue."""
        try:
            return step(job)
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - see above
            events.error(log, "append.defect", partition=job.partition.partition, defect=error)
            return LogError(f"{job.partition.partition}: the batch could not be appended ({error!r})")

    @staticmethod
    def _begin(job: _Append) -> BatchWrite | Appended:
        return job.partition.begin_write(*job.what_was_found())

    @staticmethod
    def _finish(job: _Append) -> Appended:
        assert job.write is not None
        return job.partition.finish_write(job.write, *job.what_was_found())

    def _append_now(self, job: _Append) -> Appended:
        if job.write is not None:
            job.partition.give_up(job.write)
        job.partition.check_writable()
        began = time.thread_time()
        appended = job.partition.append_validated(*job.what_was_found())
        if job.is_plain and job.write is None and len(job.batch) >= WRITTEN_BY_THREAD:
            self.cost.took(len(job.batch), time.thread_time() - began)
        return appended
