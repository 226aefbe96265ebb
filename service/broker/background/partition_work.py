"""Background work on partitions: at most one task per partition, repeated if requested meanwhile, and slowed by a back-off
after failures.

A failure that ends the node goes to `on_fatal`; failures of deleted partitions are dropped. Only the number of partitions
limits the number of tasks. The work itself limits its use of scarce resources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.broker.partition.partition import Partition
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import Advice, LogError, StorageError, StoreBehind, TierUnavailable

log = logging.getLogger(__name__)

#: Seconds between attempts on a partition whose work failed.
RETRY = BackoffSettings(0.2, 15.0)
#: Errors that are logged elsewhere: an outage of the store is logged once for all partitions, and StoreBehind with its reason.
_SAID = (TierUnavailable, StoreBehind)


class PartitionWork:
    """`what` names the work in the log, as in "offloading"."""

    def __init__(
        self,
        what: str,
        work: Callable[[Partition], Awaitable[None]],
        *,
        clock: Clock,
        rng: Rng,
        on_fatal: Callable[[LogError], None],
    ) -> None:
        self._what = what
        self._work = work
        self._clock = clock
        self._rng = rng
        self._on_fatal = on_fatal
        self._running: dict[Partition, asyncio.Task[None]] = {}
        self._again: set[Partition] = set()
        self._backoffs: dict[Partition, Backoff] = {}
        self._troubles = events.Troubles()
        self._closed = False

    def __contains__(self, partition: object) -> bool:
        """Whether the partition's work is running or waits for a retry."""
        return partition in self._running

    def request(self, partition: Partition) -> None:
        """Schedules the work. If it is running for the partition, it starts again afterwards."""
        if partition.deleted or self._closed:
            return
        if partition in self._running:
            self._again.add(partition)
            return
        name = f"{self._what} {partition.partition}"
        task = asyncio.get_running_loop().create_task(self._run(partition), name=name)
        self._running[partition] = task
        task.add_done_callback(lambda _: self._work_ended(partition))

    def forget(self, partition: Partition) -> None:
        """Cancels the partition's work: the partition is about to be deleted, or this node no longer leads it."""
        self._backoffs.pop(partition, None)
        self._troubles.ends(partition)
        self._again.discard(partition)
        task = self._running.get(partition)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancels running work and starts no more."""
        self._closed = True
        for task in tuple(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _work_ended(self, partition: Partition) -> None:
        del self._running[partition]
        if partition in self._again:
            self._again.discard(partition)
            self.request(partition)

    async def _run(self, partition: Partition) -> None:
        try:
            await self._work(partition)
        except LogError as error:
            failure = error
        except OSError as error:
            failure = StorageError(f"{partition.partition}: {error}")
        except Exception as error:  # noqa: BLE001 - a defect in one partition's work must not end the node
            events.error(log, "partition.defect", partition=partition.partition, work=self._what, defect=error)
            failure = LogError(f"{partition.partition}: {error!r}")
        else:
            self._backoffs.pop(partition, None)
            if (ailed := self._troubles.ends(partition)) is not None:
                say_over = events.debug if issubclass(ailed, _SAID) else events.info
                say_over(log, "partition.resumes", partition=partition.partition, work=self._what)
            return
        if partition.deleted:
            return
        if failure.advice is Advice.STOP:
            self._on_fatal(failure)
            return
        if self._troubles.begins(partition, failure):
            say = events.debug if isinstance(failure, _SAID) else events.warning
            say(log, "partition.work_failed", partition=partition.partition, work=self._what, error=failure)
        backoff = self._backoffs.setdefault(partition, Backoff(RETRY, self._rng))
        await self._clock.sleep(backoff.next_delay())
