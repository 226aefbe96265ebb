"""Appends that the event loop hands to threads: batches that take long to examine, and larger ones to be written.

A batch of 2 KB can inflate to 64 MB, naming the records for which one is refused takes 10 ms, and packing a megabyte in the
codec that its topic stores from 2 ms (lz4) to a second (zstd's highest level); the event loop must wait for none of it. To copy
64 KiB to the page cache takes the half of what such a request costs: threads do it beside the loop, which receives, checks and
answers meanwhile.

Invariants: the batches of one partition are appended in the order in which they came, small ones too while others wait; of one
partition one batch is written at a time, and nothing of it is part of the log before the loop says so. Whatever becomes of a
batch, the next one has its turn. What waits holds copies of its bytes (of large ones the sender's): those to be examined, and
those behind them, within MAX_HELD_BYTES for the whole node, beyond which producers are told to send again; those that only
wait to be written within WRITING_BYTES, beyond which the loop writes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from grpc_api.contract.log import Appended
from service.broker.partition import Partition
from storage_tiers import events
from storage_tiers.errors import LogError, RequestTimedOut
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.hot.settings import LARGE_BATCH_BYTES
from storage_tiers.records.batch import BatchHeader

log = logging.getLogger(__name__)

#: Batches that are examined at once.
EXAMINING_THREADS = 2
#: Batches that are written at once.
WRITING_THREADS = 2
#: Bytes of batches that wait, as they were sent; beyond it producers are told to send again.
MAX_HELD_BYTES = 256 << 20
#: Of those among them that only wait to be written.
WRITING_BYTES = 16 << 20

#: Is told on the loop how an append ended, of the bytes that were kept of it.
Done = Callable[[Appended | LogError, memoryview], None]
Examined = tuple[memoryview, BatchHeader, int]
Result = TypeVar("Result")


#: Seconds a GB that the loop's appends of larger batches may cost before threads write them, and at which it writes them again.
#: A page cache that has memory at hand costs 0.65; one that must get it from elsewhere, or wait for the disk, 2 and more.
SLOW_S_PER_GB, FAST_S_PER_GB = 1.6, 1.1
#: One of so many is written by the loop while threads write, to know what that costs.
PROBED = 32
#: Of what one more has cost: of many while the loop writes, of a few while it only looks.
_WEIGHT, _WEIGHT_OF_PROBE = 1 / 32, 1 / 4
_MOST_S_PER_GB = 4 * SLOW_S_PER_GB


class WriteCost:
    """What appends of larger batches have cost the loop lately; whether threads had better write them.

    A hand-over costs 10 to 20 microseconds and the processor's caches, so that it pays only where writing is slow."""

    def __init__(self) -> None:
        self.s_per_gb = 0.0
        self.is_slow = False
        self._since_probe = 0

    def took(self, size: int, seconds: float) -> None:
        """By an append of so many bytes. Of one that waited for a processor only so much is believed."""
        cost = min(seconds * 1e9 / size, _MOST_S_PER_GB)
        self.s_per_gb += (cost - self.s_per_gb) * (_WEIGHT_OF_PROBE if self.is_slow else _WEIGHT)
        self.is_slow = self.s_per_gb > (FAST_S_PER_GB if self.is_slow else SLOW_S_PER_GB)

    def for_thread(self) -> bool:
        """Whether the next one is for a thread."""
        if not self.is_slow:
            return False
        self._since_probe += 1
        if self._since_probe < PROBED:
            return True
        self._since_probe = 0
        return False


class _Append:
    """One batch in a partition's queue: to be examined unless `found` has it, then perhaps to be written, then taken."""

    __slots__ = ("batch", "done", "examining", "found", "partition", "write")

    def __init__(self, partition: Partition, batch: memoryview, found: Examined | None, done: Done) -> None:
        self.partition = partition
        self.batch = batch
        self.found = found
        self.done = done
        self.examining: Future[Examined] | None = None
        self.write: BatchWrite | None = None


class AppendQueues:
    """On the event loop only, but for what its threads do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._examiners = ThreadPoolExecutor(EXAMINING_THREADS, thread_name_prefix="examine")
        self._queues: dict[Partition, deque[_Append]] = {}
        #: Of batches that wait, as they are kept.
        self.held_bytes = 0
        self.cost = WriteCost()
        self._writes: queue.SimpleQueue[tuple[_Append, BatchWrite] | None] = queue.SimpleQueue()
        self._writers: list[threading.Thread] = []
        # What a thread is done with, its write or the examination before, and whether the loop has been told.
        self._ready: deque[tuple[_Append, BatchWrite | None]] = deque()
        self._is_told = False
        self._emptied: asyncio.Future[None] | None = None

    def at_once(self, partition: Partition, batch: memoryview) -> Appended | None:
        """`Partition.append`, here and now, of a batch that could be written by a thread; None where it had better be."""
        if self.held_bytes <= WRITING_BYTES and self.cost.for_thread():
            return None
        began = time.thread_time()
        appended = partition.append(batch)
        self.cost.took(len(batch), time.thread_time() - began)
        return appended

    def append(self, partition: Partition, batch: memoryview, done: Done) -> None:
        """As `Partition.append`, later: `done` is called with what became of it, also before this returns. RequestTimedOut if
        too much waits already."""
        header, waiting = partition.plain(batch), self._queues.get(partition)
        if self.held_bytes + len(batch) > MAX_HELD_BYTES and (header is None or waiting is not None):
            text = f"{partition.partition}: batches of {self.held_bytes} bytes wait to be examined; send again"
            done(RequestTimedOut(text), batch)
            return
        kept = batch if len(batch) > LARGE_BATCH_BYTES else memoryview(bytes(batch))
        job = _Append(partition, kept, None if header is None else (kept, header, -1), done)
        if header is None:
            job.examining = self._examiners.submit(partition.examined, kept)
            job.examining.add_done_callback(lambda _: self._tell(job, None))
        self.held_bytes += len(kept)
        partition.queued += 1
        partition.queues = True
        if waiting is None:
            self._queues[partition] = deque((job,))
            if header is not None:
                self._advance(partition)
            return
        waiting.append(job)
        if self.held_bytes > WRITING_BYTES:
            self._settle(partition)

    async def close(self) -> None:
        """What is under way is appended."""
        if self._queues:
            self._emptied = self._loop.create_future()
            await self._emptied
        self._examiners.shutdown()
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
            except RuntimeError:  # the machine has none left
                if not self._writers:
                    write.run()
                    self._tell(job, write)
                    return
            else:
                self._writers.append(writer)
        self._writes.put((job, write))

    def _work(self) -> None:
        while (handed := self._writes.get()) is not None:
            job, write = handed
            write.run()
            self._tell(job, write)

    def _tell(self, job: _Append, write: BatchWrite | None) -> None:
        """In any thread. The loop is woken once for all that is done until it looks."""
        self._ready.append((job, write))
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look)

    # --- on the loop --------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        self._is_told = False
        while self._ready:
            job, write = self._ready.popleft()
            waiting = self._queues.get(job.partition)
            # One that was found examined without being told may be with a thread that writes it by now.
            if waiting is not None and waiting[0] is job and job.write is write:
                if write is not None:
                    self._leave(waiting, job, self._result(self._finish, job))
                self._advance(job.partition)

    def _advance(self, partition: Partition) -> None:
        """Goes on with the first of a partition's queue, up to one that a thread has to do with."""
        waiting = self._queues.get(partition)
        while waiting:
            job = waiting[0]
            if job.found is None and (job.examining is None or not job.examining.done()):
                return
            begun = self._result(self._begin, job)
            if isinstance(begun, BatchWrite):
                job.write = begun
                self._hand_over(job, begun)
                return
            self._leave(waiting, job, begun)

    def _settle(self, partition: Partition) -> None:
        """Appends what waits of a partition, as far as it is examined, here and now: what a thread has begun is waited for."""
        waiting = self._queues.get(partition)
        while waiting and (job := waiting[0]).found is not None:
            self._leave(waiting, job, self._result(self._take, job))
        self._advance(partition)

    def _leave(self, waiting: deque[_Append], job: _Append, result: Appended | LogError) -> None:
        partition = job.partition
        waiting.popleft()
        self.held_bytes -= len(job.batch)
        partition.queued -= 1
        if not waiting:
            del self._queues[partition]
            if self._emptied is not None and not self._queues and not self._emptied.done():
                self._emptied.set_result(None)
        partition.settle_queues()
        job.done(result, job.batch)

    # --- of one of them -----------------------------------------------------------------------------------------------
    def _result(self, step: Callable[[_Append], Result], job: _Append) -> Result | LogError:
        """Of a step with it. What nobody foresaw is its producer's to know, and must not leave it in its place for ever."""
        try:
            return step(job)
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - see above
            events.error(log, "append.defect", partition=job.partition.partition, defect=error)
            return LogError(f"{job.partition.partition}: the batch could not be appended ({error!r})")

    @staticmethod
    def _begin(job: _Append) -> BatchWrite | Appended:
        if job.found is None:
            assert job.examining is not None
            job.found = job.examining.result()
        return job.partition.begin_write(*job.found)

    @staticmethod
    def _finish(job: _Append) -> Appended:
        assert job.found is not None and job.write is not None
        return job.partition.finish_write(job.write, *job.found)

    @staticmethod
    def _take(job: _Append) -> Appended:
        assert job.found is not None
        if job.write is not None:
            job.partition.give_up(job.write)
        job.partition.check_writable()
        return job.partition.take(*job.found)
