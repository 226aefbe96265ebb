"""Deletes from the bucket what no manifest names: what was removed, past the grace, and what was never named.

What was removed the manifests themselves tell: a partition of which nothing is due is not asked about at all. What was never
named only a listing tells. The whole cluster is listed once a day or grace, in stretches of a thousand keys, one a turn; a
partition is asked about those keys alone that are newer than what earlier rounds have looked at. So an idle partition costs
no request, and a cluster one LIST a thousand objects, and one listing of unfinished uploads.

    round k lists up to newest(k) ──> all written by newest(k - 1) was listed whole ──> never looked at again

Invariants: a round that the store cuts short goes on where it stopped; a partition that fails, or whose keys are too young to
judge, is looked at again from where it was, and holds no other one up.

Not promised: that a manifest which goes backwards or is removed is noticed before the next listing, or the next use. What
was looked at is remembered for this process's life.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.turns import Turns
from service.broker.partition.leading import has_hole
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from storage_tiers import events
from storage_tiers.clock import Clock
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.process.operations import AbortUploads, ListKeys, Sweep
from storage_tiers.cold.segments.sweeper import Listed
from storage_tiers.errors import Advice, LogError, StoreBehind, TierObjectMissing
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Between two listings of the whole cluster, in seconds; with a shorter grace they come once a grace.
LONGEST_LISTING_PAUSE_S = 86_400.0
#: Partitions in a row that the store may not answer for before a round gives up: each takes its time.
FAILURES_A_ROUND = 3
#: Partitions that are looked at before the event loop has its turn.
LOOKS_A_TURN = 64


class Sweeping:
    """`access` is None on a node without a store."""

    def __init__(
        self,
        partitions: Partitions,
        tiering: Tiering,
        access: StoreAccess | None,
        *,
        cluster_id: str,
        grace_ms: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._access = access
        self._client = None if access is None else access.client
        self._prefix = keys.cluster_prefix(cluster_id)
        self._grace_ms = grace_ms
        self._clock = clock
        self._turns: Turns[Partition] = Turns()
        self._troubles = events.Troubles()
        self._listed_at: float | None = None
        #: Where the listing under way goes on; None between two.
        self._after: str | None = None
        #: Everything up to this time of the store has been looked at, but in partitions that are behind.
        self._examined_ms = 0
        self._behind_ms: dict[Partition, int] = {}
        self._failed: set[Partition] = set()
        self._last_newest_ms = self._newest_ms = 0
        self._shown: set[Partition] = set()

    async def tick(self) -> None:
        if self._client is None or self._access is None or not self._access.is_open:
            return
        await self._sweep_removed()
        due_s = min(LONGEST_LISTING_PAUSE_S, self._grace_ms() / 1000)
        if self._after is not None or self._listed_at is None or self._clock.monotonic() - self._listed_at >= due_s:
            await self._list()

    # --- what was removed -------------------------------------------------------------------------------------------
    async def _sweep_removed(self) -> None:
        due: list[Partition] = []
        for place, partition in enumerate(self._partitions, 1):
            if place % LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
            tier, now_ms = partition.log.tier, self._clock.unix_ms()
            if tier is not None and tier.sweep_is_due(now_ms, self._grace_ms()) and self._may_sweep(partition):
                due.append(partition)
        failures = 0
        for partition in self._turns.of(due):
            failures = 0 if await self._sweep(partition, ()) else failures + 1
            if failures == FAILURES_A_ROUND:
                return

    def _may_sweep(self, partition: Partition) -> bool:
        """Not where offsets are missing between the bucket and the local log: what holds them may look like an orphan."""
        if has_hole(partition):
            return False
        return partition.read_error is None and self._tiering.has_compared(partition)

    # --- what was never named ---------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Goes on with the listing to its end. What the store does not answer ends it for now."""
        assert self._client is not None
        try:
            if self._after is None:
                aborted = await self._client.ask(AbortUploads(self._prefix, self._grace_ms()))
                if aborted:
                    events.info(log, "uploads.aborted", uploads=aborted)
                self._after, self._newest_ms = "", 0
                self._shown.clear()
                self._failed.clear()
            while True:
                stretch = await self._client.ask(ListKeys(self._prefix, self._after))
                await self._look_at(stretch.keys)
                if stretch.last:
                    break
                self._after = stretch.keys[-1].key
        except LogError as error:
            if error.advice is Advice.STOP:
                raise
            if self._troubles.begins("listing", error):
                events.warning(log, "listing.waits", error=error)
            return
        if self._troubles.ends("listing") is not None:
            events.info(log, "listing.resumes")
        await self._look_for_lost_manifests()
        self._after, self._listed_at = None, self._clock.monotonic()
        self._behind_ms = {p: self._behind_ms.get(p, self._examined_ms) for p in self._failed if not p.deleted}
        self._examined_ms, self._last_newest_ms = self._last_newest_ms, self._newest_ms

    async def _look_at(self, listed: Sequence[Listed]) -> None:
        self._newest_ms = max(self._newest_ms, max((each.modified_ms for each in listed), default=0))
        for partition, candidates in self._by_partition(listed).items():
            examined_ms = self._behind_ms.get(partition, self._examined_ms)
            new = tuple(each for each in candidates if each.modified_ms > examined_ms)
            if new and not (self._may_sweep(partition) and await self._sweep(partition, new)):
                self._failed.add(partition)

    def _by_partition(self, listed: Iterable[Listed]) -> Mapping[Partition, list[Listed]]:
        """The keys that were not looked at yet."""
        since_ms = min(self._behind_ms.values(), default=self._examined_ms)
        found: dict[Partition, list[Listed]] = {}
        for each in listed:
            is_manifest = "/manifests/" in each.key
            if each.modified_ms <= since_ms and not is_manifest:
                continue
            partition = self._owner(each.key)
            if partition is None:
                continue
            if is_manifest:
                self._shown.add(partition)
            found.setdefault(partition, []).append(each)
        return found

    def _owner(self, key: str) -> Partition | None:
        try:
            parsed = keys.parse(key)
        except ValueError:
            return None
        if not isinstance(parsed, keys.ManifestKey | keys.PageKey | keys.SegmentKey | keys.SidecarKey):
            return None
        partition = self._partitions.find(TopicPartition(parsed.topic, parsed.partition))
        return partition if partition is not None and partition.topic_id == parsed.topic_id else None

    async def _look_for_lost_manifests(self) -> None:
        for partition in self._partitions:
            if partition.log.tier is not None and partition not in self._shown and self._may_sweep(partition):
                await self._sweep(partition, (), must_exist=True)

    # --- one partition ----------------------------------------------------------------------------------------------
    async def _sweep(self, partition: Partition, listed: tuple[Listed, ...], *, must_exist: bool = False) -> bool:
        """False if it failed, or something of it is too young to judge: it is asked about again then."""
        assert self._client is not None
        assert self._access is not None
        if self._access.writer is None or not self._access.is_open:
            return False
        try:
            young = False
            while True:
                with self._tiering.lineage.asking(partition) as seen:
                    ids, writer = partition.ids, self._access.writer
                    report = await self._client.ask(Sweep(ids, writer, self._grace_ms(), listed, seen))
                young = young or bool(report.young)
                swept = report.removed + report.orphans
                partition.counts.deletes += swept
                if swept:
                    events.info(
                        log,
                        "objects.swept",
                        partition=partition.partition,
                        removed=report.removed,
                        orphans=report.orphans,
                    )
                if swept or must_exist:
                    await self._tiering.reload(partition)
                if not (report.cut_short and swept):
                    break
            self._goes_on(partition)
        except TierObjectMissing:
            return False
        except LogError as error:
            partition.counts.failed_deletes += 1
            self._postponed(partition, error)
            return False
        return not young

    def _postponed(self, partition: Partition, error: LogError) -> None:
        """The next round plans failed work anew. Raises an error that ends this node."""
        if error.advice is Advice.STOP and not partition.deleted:
            raise error
        if not isinstance(error, StoreBehind) and self._troubles.begins(partition.partition, error):
            events.warning(log, "partition.work_failed", partition=partition.partition, work="sweeping", error=error)

    def _goes_on(self, partition: Partition) -> None:
        if self._troubles.ends(partition.partition) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work="sweeping")
