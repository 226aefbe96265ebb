"""Deletes objects from the bucket that no manifest names: removed ones past the grace, and ones that were never named.

Manifests list removed objects, so a partition with nothing due costs no request. Only a listing finds objects that were never
named. The whole cluster is listed once per day or grace, a thousand keys per request. A partition is swept only if it has keys
that are newer than those that earlier rounds examined. So an idle partition costs no request. A cluster costs one LIST per
thousand objects, plus one listing of unfinished uploads.

    round k lists up to newest(k) ──> everything written by newest(k - 1) was listed ──> never examined again

Invariants: a round that the store interrupts continues where it stopped. A partition that fails, or whose keys are too young
to judge, is examined again from the same point and delays no other partition.

A manifest that went backwards or was removed is noticed only by the next listing or the next use. A restart loses the progress
of a listing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering import Tiering
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, Turns, slices
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

#: Seconds between two listings of the whole cluster; with a shorter grace, one per grace.
LONGEST_LISTING_PAUSE_S = 86_400.0
#: A round ends after the store fails for this many partitions in a row: each failure may take its full timeout.
FAILURES_A_ROUND = 3


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
        #: The key after which the current listing continues; None between two listings.
        self._after: str | None = None
        #: Everything up to this store time has been examined. `_behind_ms` has the partitions with an earlier time of their
        #: own.
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

    # --- removed objects --------------------------------------------------------------------------------------------
    async def _sweep_removed(self) -> None:
        due: list[Partition] = []
        async for some in slices(self._partitions, LOOKS_A_TURN):
            for partition in some:
                tier, now_ms = partition.log.tier, self._clock.unix_ms()
                if tier is not None and tier.sweep_is_due(now_ms, self._grace_ms()) and self._may_sweep(partition):
                    due.append(partition)
        failures = 0
        for partition in self._turns.of(due):
            failures = 0 if await self._sweep(partition, ()) else failures + 1
            if failures == FAILURES_A_ROUND:
                return

    def _may_sweep(self, partition: Partition) -> bool:
        """Whether the partition may be swept now. If offsets are missing between the bucket and the local log, it may not:
        objects with these offsets may look like orphans."""
        if has_hole(partition):
            return False
        return partition.read_error is None and self._tiering.has_compared(partition)

    # --- objects never named ----------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Begins or continues a listing, to its end or until the store fails."""
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
        """Groups keys that may not have been examined, and keys of manifests, by partition. Notes which partitions have a
        manifest."""
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
        async for some in slices(self._partitions, GLANCES_A_TURN):
            for partition in some:
                if partition.log.tier is not None and partition not in self._shown and self._may_sweep(partition):
                    await self._sweep(partition, (), must_exist=True)

    # --- one partition ----------------------------------------------------------------------------------------------
    async def _sweep(self, partition: Partition, listed: tuple[Listed, ...], *, must_exist: bool = False) -> bool:
        """Sweeps one partition. Returns False if it has to be swept again: the sweep failed, or some objects are too young to
        judge."""
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
                if not (report.cut_short and swept and self._may_sweep(partition)):
                    break
            self._log_resumed(partition)
        except TierObjectMissing:
            return False
        except LogError as error:
            partition.counts.failed_deletes += 1
            self._postponed(partition, error)
            return False
        return not young

    def _postponed(self, partition: Partition, error: LogError) -> None:
        """Logs a failure; the next round plans the work again. An error that ends this node is raised instead."""
        if error.advice is Advice.STOP and not partition.deleted:
            raise error
        if not isinstance(error, StoreBehind) and self._troubles.begins(partition.partition, error):
            events.warning(log, "partition.work_failed", partition=partition.partition, work="sweeping", error=error)

    def _log_resumed(self, partition: Partition) -> None:
        if self._troubles.ends(partition.partition) is not None:
            events.info(log, "partition.resumes", partition=partition.partition, work="sweeping")
