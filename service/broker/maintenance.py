"""What the clock demands of every partition: retention over both tiers, sweeping, flushing by time, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service.broker.flusher import Flusher
from service.broker.leading import waits
from service.broker.partition import Partition
from service.broker.partitions import Partitions
from service.broker.store_access import StoreAccess
from service.broker.tiering import Tiering
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest import Entry, Ids, PageRef
from storage_tiers.cold.tier_client import TierClient
from storage_tiers.cold.tier_questions import PageEntries
from storage_tiers.errors import Advice, LogError, TierObjectMissing
from storage_tiers.policy.retention import RetentionLimits, RetentionPlan, plan_retention

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

    # --- by the second ------------------------------------------------------------------------------------------------
    async def flush_by_time(self) -> None:
        """`flush.ms`: the oldest record that is not on disk waits no longer than that."""
        now_ms = self._clock.unix_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            if hot.unflushed_records and now_ms - partition.flushed_ms >= hot.settings.flush_ms:
                self._flusher.request(partition)

    async def tier(self) -> None:
        self._tiering.tick([p for p in self._partitions if p.log.hot.size_bytes or waits(p)])

    async def checkpoint(self) -> None:
        self._partitions.checkpoint()
        now_ms = self._clock.unix_ms()
        for partition in self._partitions:
            hot = partition.log.hot
            hot.producer_state.expire(now_ms, hot.settings.producer_id_expiration_ms)

    # --- by the minute ------------------------------------------------------------------------------------------------
    async def retain(self) -> None:
        """`retention.ms` and `retention.bytes`, counted over both tiers."""
        for partition in self._partitions:
            if partition.reads_blocked is not None or not partition.log.hot.settings.cleanup_delete:
                continue
            try:
                await self._retain(partition)
            except LogError as error:
                if error.advice is Advice.STOP and not partition.deleted:
                    raise
                log.warning("retention of %s waits: %s", partition.partition, error)

    async def _retain(self, partition: Partition) -> None:
        plan = await self._plan_retention(partition)
        if partition.deleted:
            return
        hot = partition.log.hot
        if plan.roll_active:
            hot.roll()
        if plan.log_start > hot.log_start_offset:
            hot.raise_log_start(plan.log_start)
            self._partitions.checkpoint_log_starts()
            log.info("%s: log start rises to %d by retention", partition.partition, plan.log_start)
            self._tiering.kick(partition)
        root = partition.log.root
        if root is None or self._client is None or self._access is None or self._access.writer is None:
            return
        if any(entry.end <= hot.log_start_offset for entry in root.entries) or any(
            page.end <= hot.log_start_offset for page in root.live_pages
        ):
            retired = await self._client.retire(self._ids_of(partition), self._access.writer, hot.log_start_offset)
            await self._tiering.accept(partition, retired)

    async def _plan_retention(self, partition: Partition) -> RetentionPlan:
        """Entries are looked at page by page, only as far as they have expired."""
        hot, root, settings = partition.log.hot, partition.log.root, partition.log.hot.settings
        limits = RetentionLimits(settings.retention_ms, settings.retention_bytes)
        known: list[Entry] = []
        pages = list(root.live_pages) if root is not None else []
        rest = list(root.entries) if root is not None else []
        total = sum(page.bytes for page in pages) + sum(entry.bytes for entry in rest)
        while True:
            entries = known if pages else known + rest
            plan = plan_retention(
                entries,
                total,
                hot.segments(),
                tier_end=root.end if root is not None else 0,
                log_start=hot.log_start_offset,
                high_watermark=partition.state.high_watermark,
                limits=limits,
                now_ms=self._clock.unix_ms(),
                cold_complete=not pages,
            )
            if not pages or (known and plan.log_start < known[-1].end) or limits == RetentionLimits():
                return plan
            known += await self._page(partition, pages.pop(0))

    async def _page(self, partition: Partition, page: PageRef) -> list[Entry]:
        assert self._client is not None
        found: list[Entry] = []
        start = page.base
        while start < page.end:
            more = await self._client.page_entries(PageEntries(self._ids_of(partition), page, start))
            if not more:
                break
            found += more
            start = more[-1].end
        return found

    # --- by the hour --------------------------------------------------------------------------------------------------
    async def sweep(self) -> None:
        """Deletes objects that no manifest names, past the grace."""
        if self._client is None or self._access is None or self._access.writer is None:
            return
        for partition in self._partitions:
            if partition.reads_blocked is not None or not partition.log.hot.settings.remote_storage_enable:
                continue
            try:
                ids = self._ids_of(partition)
                report = await self._client.sweep(ids, self._access.writer, self._grace_ms())
                if report.removed or report.orphans or report.uploads_aborted:
                    log.info("%s: swept %s", partition.partition, report)
                    root = await self._client.load_root(ids, self._access.writer)
                    if root is not None:
                        await self._tiering.accept(partition, root)
            except TierObjectMissing:
                continue
            except LogError as error:
                if error.advice is Advice.STOP and not partition.deleted:
                    raise
                log.warning("sweeping %s waits: %s", partition.partition, error)
