"""What the clock demands of every partition: sweeping, flushing by time, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.broker.flusher import Flusher
from service.broker.leading import waits
from service.broker.partition import Partition
from service.broker.partitions import Partitions
from service.broker.store_access import StoreAccess
from service.broker.tiering import Tiering
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.process.client import TierClient
from storage_tiers.errors import Advice, LogError, TierObjectMissing, TierUnavailable

log = logging.getLogger(__name__)


class Maintenance:
    """`client` and `access` are None on a node without a store."""

    def __init__(
        self,
        partitions: Partitions,
        tiering: Tiering,
        flusher: Flusher,
        client: TierClient | None,
        access: StoreAccess | None,
        *,
        ids_of: Callable[[Partition], Ids],
        grace_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._flusher = flusher
        self._client = client
        self._access = access
        self._ids_of = ids_of
        self._grace_ms = grace_ms
        self._clock = clock
        self._troubles = events.Troubles()

    # --- by the second ------------------------------------------------------------------------------------------------
    async def flush_by_time(self) -> None:
        """`flush.ms`: the oldest record that is not on disk waits no longer than that."""
        now_ms = self._clock.steady_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            if hot.unflushed_records and now_ms - partition.flushed_ms >= hot.settings.flush_ms:
                self._flusher.request(partition)

    async def tier(self) -> None:
        await self._tiering.tick([p for p in self._partitions if p.log.hot.size_bytes or waits(p)])

    async def checkpoint(self) -> None:
        await self._partitions.checkpoint()
        now_ms = self._clock.steady_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            hot.producer_state.expire(now_ms, hot.settings.producer_id_expiration_ms)
            if forgotten := hot.producer_state.take_forgotten():
                most = hot.settings.most_producers
                events.warning(
                    log, "producers.forgotten", partition=partition.partition, forgotten=forgotten, most=most
                )

    def _postponed(self, work: str, partition: Partition, error: LogError) -> None:
        """What failed is planned anew next time; the error that ends this node is raised."""
        if error.advice is Advice.STOP and not partition.deleted:
            raise error
        if self._troubles.begins((work, partition.partition), error):
            events.warning(log, "partition.waits", partition=partition.partition, work=work, error=error)

    def _goes_on(self, work: str, partition: Partition) -> None:
        if self._troubles.ends((work, partition.partition)) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work=work)

    # --- by the hour --------------------------------------------------------------------------------------------------
    async def sweep(self) -> None:
        """Deletes objects that no manifest names, past the grace."""
        if self._client is None or self._access is None or self._access.writer is None:
            return
        for partition in self._partitions:
            if partition.reads_blocked is not None or not self._tiering.has_compared(partition):
                continue
            try:
                ids = self._ids_of(partition)
                report = await self._client.sweep(ids, self._access.writer, self._grace_ms())
                partition.counts.deletes += report.removed + report.orphans
                self._goes_on("sweeping", partition)
                if report.removed or report.orphans or report.uploads_aborted:
                    events.info(
                        log,
                        "objects.swept",
                        partition=partition.partition,
                        removed=report.removed,
                        orphans=report.orphans,
                        uploads_aborted=report.uploads_aborted,
                    )
                    root = await self._client.load_root(ids, self._access.writer)
                    if root is not None:
                        await self._tiering.accept(partition, root)
            except TierObjectMissing:
                continue
            except LogError as error:
                partition.counts.failed_deletes += 1
                self._postponed("sweeping", partition, error)
                if isinstance(error, TierUnavailable):
                    return
