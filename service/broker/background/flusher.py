"""Group fsync: one fsync of a partition covers every append that precedes it.

Appends continue while a flush runs in a thread; the next flush covers them. A failed fsync is final for its partition until
restart: the kernel may have dropped the dirty pages, so a second fsync that succeeds would prove nothing. Other failures (no
descriptor, no space) are temporary: each is logged once and reported to the flush's waiters, and the flush is retried until it
succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from service.broker.partition.partition import Partition
from service.broker.partition.phase import Use
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import StorageError

log = logging.getLogger(__name__)

#: Threads that may wait for the disk at the same time.
FLUSH_THREADS = 4
#: Seconds until a flush with a temporary failure is tried again.
RETRY_S = 1.0


class Flusher:
    """`flushes` counts the flushes that ended since the start, including failed ones. `flushing_s` is their total time,
    including waits for a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.flushes = 0
        self.flushing_s = 0.0
        self._threads = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        self._running: dict[Partition, asyncio.Task[StorageError | None]] = {}
        self._again: set[Partition] = set()
        self._postponed: set[Partition] = set()
        self._closed = False
        self._troubles = events.Troubles()

    def request(self, partition: Partition) -> None:
        """Flushes soon. At most one flush of a partition runs at a time. A flush that waits for its retry is not started."""
        if partition in self._postponed:
            return
        self._start(partition)

    async def flush(self, partition: Partition) -> None:
        """Returns once everything appended before the call is on disk, or was discarded for a shorter log from the bucket."""
        hot = partition.log.hot
        upto = hot.end_offset
        while hot.recovery_point < min(upto, hot.end_offset):
            partition.check(Use.FLUSH)
            self._start(partition)
            task = self._running[partition]
            await asyncio.wait({task})
            if not task.cancelled() and (failure := task.result()) is not None:
                raise failure

    async def close(self) -> None:
        self._closed = True
        while self._running:
            await asyncio.wait(set(self._running.values()))
        self._threads.shutdown(wait=True)

    def _start(self, partition: Partition) -> None:
        """Starts a flush. If one runs, another follows it."""
        if partition in self._running:
            self._again.add(partition)
            return
        task = asyncio.get_running_loop().create_task(self._run(partition), name=f"flush {partition.partition}")
        self._running[partition] = task
        task.add_done_callback(lambda _: self._flush_ended(partition))

    def _flush_ended(self, partition: Partition) -> None:
        del self._running[partition]
        if partition in self._again:
            self._again.discard(partition)
            self._start(partition)

    async def _run(self, partition: Partition) -> StorageError | None:
        """Flushes once. Returns the error that prevented the flush, or None."""
        if partition.deleted:
            return None
        hot = partition.log.hot
        try:
            targets = hot.begin_flush()
        except StorageError as error:
            return self._refused(partition, error)
        began = self._clock.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, targets.sync)
        except OSError as error:
            hot.finish_flush(targets)
            if not hot.sync_failed:
                return self._refused(partition, StorageError(f"{partition.partition}: cannot flush now ({error})"))
            events.error(log, "partition.fsync_failed", partition=partition.partition, error=error)
            return self._refused(
                partition,
                StorageError(
                    f"{partition.partition}: fsync failed ({error}); repair or replace the disk, then restart the node"
                ),
            )
        finally:
            self.flushes += 1
            self.flushing_s += self._clock.monotonic() - began
        hot.finish_flush(targets)
        partition.flushed(hot.recovery_point)
        if self._troubles.ends(partition) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work="flushing")
        if not targets.synced and hot.recovery_point < hot.end_offset:
            self._again.add(partition)  # a truncation voided the flush before its thread ran; its waiters still wait
        return None

    def _refused(self, partition: Partition, error: StorageError) -> StorageError:
        if partition.log.hot.sync_failed:
            if not partition.life.is_failed:
                partition.fail(error)
            return error
        if self._troubles.begins(partition, error):
            events.warning(log, "partition.work_failed", partition=partition.partition, work="flushing", error=error)
        if partition not in self._postponed and not self._closed:
            self._postponed.add(partition)
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, partition)
        return error

    def _retry(self, partition: Partition) -> None:
        self._postponed.discard(partition)
        if not self._closed and not partition.deleted:
            self._start(partition)
