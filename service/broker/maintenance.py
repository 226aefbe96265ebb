"""What the clock demands of every partition: retention over both tiers, sweeping, flushing by time, checkpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from service.broker.flusher import Flusher
from service.broker.leading import waits
from service.broker.partition import Partition
from service.broker.partitions import Partitions
from service.broker.store_access import StoreAccess
from service.broker.tiering import Tiering, say_committed
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest.model import Entry, Ids, PageRef
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.operations import PageEntries
from storage_tiers.errors import Advice, LogError, TierObjectMissing, TierUnavailable
from storage_tiers.policy.retention import RetentionLimits, RetentionPlan, plan_retention
from storage_tiers.policy.segments import Now

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
        now: Callable[[], Now],
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._flusher = flusher
        self._client = client
        self._access = access
        self._ids_of = ids_of
        self._grace_ms = grace_ms
        self._clock = clock
        self._now = now
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

    # --- by the minute ------------------------------------------------------------------------------------------------
    async def retain(self) -> None:
        """`retention.ms` and `retention.bytes`, counted over both tiers: first what this node hides by itself, which frees
        its disk also while the store is away, then what the manifests shall drop."""
        await self._raise_log_starts(await self._plans())
        for partition in self._partitions:
            try:
                await self._retire(partition)
                self._goes_on("retention", partition)
            except LogError as error:
                self._postponed("retention", partition, error)
                if isinstance(error, TierUnavailable):
                    return  # each further partition would wait as long

    async def _plans(self) -> dict[Partition, RetentionPlan]:
        plans: dict[Partition, RetentionPlan] = {}
        store_is_away = False
        for partition in self._partitions:
            await asyncio.sleep(0)  # among thousands of partitions others get their turn
            root, settings = partition.log.root, partition.log.hot.settings
            if partition.reads_blocked is not None or not settings.cleanup_delete:
                continue
            if store_is_away and root is not None and root.live_pages:
                continue
            try:
                plans[partition] = await self._plan_retention(partition)
            except LogError as error:
                self._postponed("retention", partition, error)
                store_is_away = store_is_away or isinstance(error, TierUnavailable)
        return plans

    async def _raise_log_starts(self, plans: Mapping[Partition, RetentionPlan]) -> None:
        rising: dict[Partition, int] = {}
        for partition, plan in plans.items():
            hot = partition.log.hot
            # The log may have been deleted, or discarded for the bucket's, since it was looked at.
            if partition.reads_blocked is not None or plan.log_start > partition.state.high_watermark:
                continue
            try:
                if plan.roll_active:
                    hot.roll()
            except LogError as error:
                self._postponed("retention", partition, error)
                continue
            if plan.log_start > hot.log_start_offset:
                rising[partition] = plan.log_start
        await self._partitions.raise_log_starts(rising)
        for partition, offset in rising.items():
            events.info(log, "log_start.raised", partition=partition.partition, log_start=offset, by="retention")
        await self._tiering.kick_all(rising)

    async def _retire(self, partition: Partition) -> None:
        """Hides in the manifest what log start hides here, and drops from it what lies below as a whole."""
        root, log_start = partition.log.root, partition.log.log_start_offset
        if root is None or partition.reads_blocked is not None or not self._tiering.has_compared(partition):
            return
        if self._client is None or self._access is None or self._access.writer is None:
            return
        oldest: Sequence[PageRef | Entry] = root.live_pages[:1] or root.entries[:1]
        if root.log_start < min(log_start, root.end) or (oldest and oldest[0].end <= log_start):
            retired = await self._client.retire(self._ids_of(partition), self._access.writer, log_start)
            say_committed(partition, retired, root)
            await self._tiering.accept(partition, retired)

    def _postponed(self, work: str, partition: Partition, error: LogError) -> None:
        """What failed is planned anew next time; the error that ends this node is raised."""
        if error.advice is Advice.STOP and not partition.deleted:
            raise error
        if self._troubles.begins((work, partition.partition), error):
            events.warning(log, "partition.waits", partition=partition.partition, work=work, error=error)

    def _goes_on(self, work: str, partition: Partition) -> None:
        if self._troubles.ends((work, partition.partition)) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work=work)

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
                now=self._now(),
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
