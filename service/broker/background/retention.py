"""Applies `retention.ms` and `retention.bytes` to every partition, counted over both tiers.

Log starts rise first, which frees this node's disk even while the store is unavailable. Then the manifests drop the segments
below the new log starts. A partition without expired segments costs the event loop a constant time: only its oldest segment is
checked. The tier process plans expiry within manifest pages, one request per partition.

Expired segments may stay for a while: if the store or the disk refuses, the next round plans the removal again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from service.broker.background.accepted_manifests import say_committed
from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, Turns, slices
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Use
from storage_tiers import events
from storage_tiers.cold.manifest.lookup import live_bytes
from storage_tiers.cold.process.operations import Expire, PlanPages
from storage_tiers.errors import Advice, LogError, TierUnavailable
from storage_tiers.policy.retention import (
    Expired,
    Moment,
    RetentionLimits,
    RetentionPlan,
    goes,
    plan_local,
    plan_segments,
)
from storage_tiers.policy.segments import Now, age_ms

log = logging.getLogger(__name__)


class Retention:
    """`access` is None on a node without a store."""

    def __init__(
        self,
        partitions: Partitions,
        tiering: Tiering,
        access: StoreAccess | None,
        *,
        now: Callable[[], Now],
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._access = access
        self._client = None if access is None else access.client
        self._now = now
        self._planning: Turns[Partition] = Turns()
        self._expiring: Turns[Partition] = Turns()
        self._troubles = events.Troubles()

    async def tick(self) -> None:
        """Raises log starts first, then drops expired segments from manifests."""
        await self._raise_log_starts(await self._plans())
        due: list[Partition] = []
        async for some in slices(self._partitions, GLANCES_A_TURN):
            due += filter(self._has_to_expire, some)
        for partition in self._expiring.of(due):
            try:
                await self._expire(partition)
                self._log_resumed(partition)
            except LogError as error:
                self._postponed(partition, error)
                if isinstance(error, TierUnavailable):
                    return  # each further partition would wait for the same timeout

    # --- log start --------------------------------------------------------------------------------------------------
    async def _plans(self) -> dict[Partition, RetentionPlan]:
        plans: dict[Partition, RetentionPlan] = {}
        store_is_away = False
        async for some in slices(self._planning.of(list(self._partitions)), LOOKS_A_TURN):
            for partition in filter(self._may_plan, some):
                try:
                    plan = await self._plan_if_due(partition, store_is_away=store_is_away)
                except LogError as error:
                    self._postponed(partition, error)
                    store_is_away = store_is_away or isinstance(error, TierUnavailable)
                    continue
                if plan is not None:
                    plans[partition] = plan
        return plans

    async def _plan_if_due(self, partition: Partition, *, store_is_away: bool) -> RetentionPlan | None:
        """None if nothing has expired, or if the plan needs pages and the store is unavailable."""
        if self.keeps_all(partition):
            self._log_resumed(partition)
            return None
        return None if store_is_away and _has_pages(partition) else await self._plan(partition)

    def _may_plan(self, partition: Partition) -> bool:
        return partition.life.refusal(Use.ADMIN) is None and partition not in self._tiering.lineage

    def keeps_all(self, partition: Partition) -> bool:
        """Whether nothing has expired, judged by the oldest segment alone."""
        hot, tier = partition.log.hot, partition.log.tier
        settings = hot.settings
        limits = RetentionLimits(settings.retention_ms, settings.retention_bytes)
        if not settings.cleanup_delete or limits == RetentionLimits():
            return True
        if tier is None or tier.oldest is None:
            local = hot.oldest_segment()
            if local.size_bytes == 0:
                return hot.size_bytes == 0
            return not goes(
                age_ms(local, self._now()), local.size_bytes, hot.size_bytes - limits.retention_bytes, limits
            )
        age = self._now().expiry_ms - tier.oldest.newest_ms
        # Segments in both tiers count twice here. If nothing expires even then, the exact sum is not needed.
        if not goes(age, tier.oldest.bytes, tier.bytes + hot.size_bytes - limits.retention_bytes, limits):
            return True
        excess = tier.bytes + _only_local_bytes(partition) - limits.retention_bytes
        return not goes(age, tier.oldest.bytes, excess, limits)

    async def _plan(self, partition: Partition) -> RetentionPlan:
        hot, cold, settings = partition.log.hot, partition.log.cold, partition.log.hot.settings
        limits = RetentionLimits(settings.retention_ms, settings.retention_bytes)
        manifest = await cold.manifest() if cold is not None and partition.log.tier is not None else None
        moment = Moment(limits, self._now(), partition.state.high_watermark)
        tiered_bytes = live_bytes(manifest) if manifest is not None else 0
        found = Expired(hot.log_start_offset, tiered_bytes + _only_local_bytes(partition) - limits.retention_bytes)
        if manifest is not None:
            if manifest.live_pages:
                assert self._client is not None
                question = PlanPages(partition.ids, manifest.live_pages, found, moment)
                found = await self._client.ask(question)
            found = plan_segments(manifest.segments, found, moment)
        start = max(manifest.end if manifest is not None else 0, hot.log_start_offset)
        plan = plan_local([segment for segment in hot.segments() if segment.end > start], found, moment)
        return plan._replace(log_start=max(plan.log_start, hot.log_start_offset))

    async def _raise_log_starts(self, plans: Mapping[Partition, RetentionPlan]) -> None:
        rising: dict[Partition, int] = {}
        for partition, plan in plans.items():
            hot = partition.log.hot
            # Since the plan, the log may have been deleted or replaced by the bucket's, or the store may have fallen behind.
            if (
                partition.life.refusal(Use.ADMIN) is not None
                or partition in self._tiering.lineage
                or plan.log_start > partition.state.high_watermark
            ):
                continue
            try:
                if plan.roll_active:
                    hot.roll()
            except LogError as error:
                self._postponed(partition, error)
                continue
            if plan.log_start > hot.log_start_offset:
                rising[partition] = plan.log_start
        await self._partitions.raise_log_starts(rising)
        for partition, offset in rising.items():
            events.info(log, "log_start.raised", partition=partition.partition, log_start=offset, by="retention")
        await self._tiering.kick_all(rising)

    # --- the manifest -----------------------------------------------------------------------------------------------
    def _has_to_expire(self, partition: Partition) -> bool:
        """Whether the manifest shows offsets below the local log start, or has segments that lie entirely below it."""
        tier, log_start = partition.log.tier, partition.log.log_start_offset
        if tier is None or partition.read_error is not None or not self._tiering.has_compared(partition):
            return False
        if tier.log_start < min(log_start, tier.end):
            return True
        return tier.oldest is not None and tier.oldest.end <= log_start

    async def _expire(self, partition: Partition) -> None:
        if self._client is None or self._access is None or self._access.writer is None or not self._access.is_open:
            return
        if self._has_to_expire(partition):
            before, log_start = partition.log.tier, partition.log.log_start_offset
            with self._tiering.lineage.asking(partition) as seen:
                ids, writer = partition.ids, self._access.writer
                expired = await self._client.ask(Expire(ids, writer, log_start, seen))
                say_committed(partition, expired, before)
                await self._tiering.accept(partition, expired)

    # --- trouble ----------------------------------------------------------------------------------------------------
    def _postponed(self, partition: Partition, error: LogError) -> None:
        """Logs a failure; the next round plans the work again. An error that ends this node is raised instead."""
        if error.advice is Advice.STOP and not partition.deleted:
            raise error
        if self._troubles.begins(partition.partition, error):
            events.warning(log, "partition.work_failed", partition=partition.partition, work="retention", error=error)

    def _log_resumed(self, partition: Partition) -> None:
        if self._troubles.ends(partition.partition) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work="retention")


def _has_pages(partition: Partition) -> bool:
    return partition.log.tier is not None and partition.log.tier.paged


def _only_local_bytes(partition: Partition) -> int:
    hot = partition.log.hot
    return hot.totals_after(max(partition.log.tiered_end, hot.log_start_offset)).size
