"""Group fsync: one fsync of a partition covers every append before it began.

Appends go on while a flush runs in a thread; what arrives meanwhile is covered by the next one. An fsync that fails is
final for its partition until restart: after a failed fsync the kernel may have dropped the dirty pages, so a second
fsync that succeeds would prove nothing.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from service.broker.partition import Partition
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.errors import StorageError

log = logging.getLogger(__name__)

#: Threads that may wait for the disk at once.
FLUSH_THREADS = 4


class Flusher:
    """`flushes` that ended since the start, well or not, took `flushing_s` seconds with their wait for a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.flushes = 0
        self.flushing_s = 0.0
        self._threads = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="flush")
        self._running: dict[Partition, asyncio.Task[None]] = {}
        self._again: set[Partition] = set()

    def request(self, partition: Partition) -> None:
        """Flushes soon; at most one flush of a partition runs at a time."""
        if partition in self._running:
            self._again.add(partition)
        else:
            self._start(partition)

    async def flush(self, partition: Partition) -> None:
        """Returns once everything appended before the call is on disk, or was discarded: the bucket's log may be shorter."""
        hot = partition.log.hot
        upto = hot.end_offset
        while hot.recovery_point < min(upto, hot.end_offset):
            if partition.deleted or isinstance(partition.unavailable, StorageError):
                assert partition.unavailable is not None
                raise partition.unavailable.with_traceback(None)
            self.request(partition)
            task = self._running[partition]
            await asyncio.wait({task})
            if not task.cancelled() and (failure := task.exception()) is not None:
                raise failure

    async def close(self) -> None:
        while self._running:
            await asyncio.wait(set(self._running.values()))
        self._threads.shutdown(wait=True)

    def _start(self, partition: Partition) -> None:
        task = asyncio.get_running_loop().create_task(self._run(partition), name=f"flush {partition.partition}")
        self._running[partition] = task
        task.add_done_callback(lambda _: self._ended(partition))

    def _ended(self, partition: Partition) -> None:
        del self._running[partition]
        if partition in self._again:
            self._again.discard(partition)
            self._start(partition)

    async def _run(self, partition: Partition) -> None:
        if partition.deleted:
            return
        hot = partition.log.hot
        try:
            targets = hot.begin_flush()
        except StorageError as error:
            partition.fail(error)
            return
        began = self._clock.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, targets.sync)
        except OSError as error:
            hot.finish_flush(targets)
            events.error(log, "partition.fsync_failed", partition=partition.partition, error=error)
            partition.fail(
                StorageError(f"{partition.partition}: fsync failed ({error}); mend the disk, then restart the node")
            )
            return
        finally:
            self.flushes += 1
            self.flushing_s += self._clock.monotonic() - began
        hot.finish_flush(targets)
        partition.flushed(hot.recovery_point)
        if not targets.synced and hot.recovery_point < hot.end_offset:
            self._again.add(partition)  # a truncation made it void before its turn in a thread; who waits waits on
