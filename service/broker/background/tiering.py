"""Offloads the partitions' closed segments to the bucket, and evicts the local copies afterwards.

Order for each segment: fsync; upload, verify and commit (in the tier process); save the manifest locally and sync it; only then
evict. A failed step is planned again from the newest manifest; a fenced writer ends the node. A partition has at most one task
of offloading and one of local retention. Offloads are bounded across the node. Local retention flushes closed segments and
deletes those below log start; it does not need the store.

An offload may start late: a partition waits its turn, and all wait while the store is unavailable.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from grpc_api.contract.log import SealedPartition
from service.broker.background.aborted_lists import sendable
from service.broker.background.accepted_manifests import AcceptedManifests, say_committed
from service.broker.background.delayed_offloads import not_offloaded
from service.broker.background.evicting import evict
from service.broker.background.extensions import Extensions
from service.broker.background.flusher import Flusher
from service.broker.background.lineage import StoreLineage
from service.broker.background.partition_work import PartitionWork
from service.broker.background.store_access import StoreAccess
from service.broker.background.tiering_policy import LONGEST_PAUSE_MS, TieringPolicy
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, slices
from service.broker.partition.leading import has_to_arrive, reconcile
from service.broker.partition.partition import Partition
from service.broker.partition.phase import Phase
from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.model import Manifest, ManifestWriter
from storage_tiers.cold.process.operations import Claim, Extend, LoadManifest, RaiseLogStart
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.errors import InvalidRequest, LogError, StorageError, TierCorrupt, TierUnavailable
from storage_tiers.files import Files
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.snapshots import is_sound
from storage_tiers.policy.eviction import LocalLimits, plan_eviction
from storage_tiers.policy.segments import Now
from storage_tiers.policy.tiering import Offload, TieringPlan, plan_tiering

log = logging.getLogger(__name__)

#: Partitions that offload at the same time.
CONCURRENT_PARTITIONS = 4
#: Partitions in local retention at the same time: each costs the event loop little, and the disk much more.
CONCURRENT_LOCAL_RETENTION = 16


class Tiering:
    """`access` is None on a node without a store. Then nothing is tiered, and only segments below log start are evicted."""

    def __init__(
        self,
        access: StoreAccess | None,
        *,
        policy: TieringPolicy,
        flusher: Flusher,
        files: Files,
        clock: Clock,
        rng: Rng,
        on_fatal: Callable[[LogError], None],
    ) -> None:
        self._access = access
        self._client = None if access is None else access.client
        self._policy = policy
        self._flusher = flusher
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENT_PARTITIONS)
        self._local_retention_slots = asyncio.Semaphore(CONCURRENT_LOCAL_RETENTION)
        self._offloading = PartitionWork("offloading", self._offload, clock=clock, rng=rng, on_fatal=on_fatal)
        self._local_retention = PartitionWork(
            "local retention", self._apply_local_retention, clock=clock, rng=rng, on_fatal=on_fatal
        )
        self._compared: set[Partition] = set()
        self.lineage = StoreLineage(self._falls_behind)
        self._manifests = AcceptedManifests(self.lineage, files, on_fatal=on_fatal, on_newer=self._is_newer)
        self.extensions = Extensions()
        self._moved = asyncio.Event()
        self._troubles = events.Troubles()

    # --- when ---------------------------------------------------------------------------------------------------------
    def _falls_behind(self, partition: Partition) -> None:
        self._compared.discard(partition)
        partition.tier_due_ms = 0  # checked again soon, until the missing objects are restored

    def kick(self, partition: Partition) -> None:
        """Schedules a check: there may be something to flush, offload or evict."""
        partition.tier_due_ms = 0
        self._local_retention.request(partition)
        if self._is_open:
            self._offloading.request(partition)

    async def kick_all(self, partitions: Iterable[Partition]) -> None:
        """Does the same as `kick` for all partitions, a few per turn of the event loop."""
        async for some in slices(partitions, LOOKS_A_TURN):
            for partition in some:
                self.kick(partition)

    async def tick(self, partitions: Iterable[Partition]) -> None:
        """Called about every second. Schedules the work that has become due: offloads, retries and evictions."""
        now, due = self._policy.now(), list[Partition]()
        async for some in slices(partitions, GLANCES_A_TURN):
            due += (p for p in some if now.steady_ms >= p.tier_due_ms and (p.log.hot.size_bytes or p.is_recovering))
        async for some in slices(due, LOOKS_A_TURN):
            self._look_at(some, now)

    def _look_at(self, partitions: Iterable[Partition], now: Now) -> None:
        for partition in partitions:
            if not partition.leads:
                continue
            try:
                self._request_due(partition, now)
            except LogError as error:
                # A damaged log must not delay the other partitions.
                if self._troubles.begins(partition.partition, error):
                    events.warning(
                        log, "partition.work_failed", partition=partition.partition, work="planning", error=error
                    )
                partition.tier_due_ms = now.steady_ms + LONGEST_PAUSE_MS

    def _request_due(self, partition: Partition, now: Now) -> None:
        partition.tier_due_ms = now.steady_ms + self._policy.pause_ms(partition)
        if partition not in self._local_retention and self._evictions(partition, now):
            partition.tier_due_ms = 0
            self._local_retention.request(partition)
        if partition in self._offloading:
            partition.tier_due_ms = 0
        elif self._has_to_offload(partition, now):
            partition.tier_due_ms = 0
            self._offloading.request(partition)

    def _has_to_offload(self, partition: Partition, now: Now) -> bool:
        if self._is_open and (partition.is_recovering or partition in self.lineage or _shows_deleted(partition)):
            return True
        if self._must_claim(partition):
            return True
        plan = self._plan(partition, now)
        return plan.close_active or bool(plan.offloads)

    async def close(self) -> None:
        """Cancels all work; every step may be interrupted anywhere."""
        await self._offloading.close()
        await self._local_retention.close()
        await self._manifests.close()

    # --- what ---------------------------------------------------------------------------------------------------------
    @property
    def _is_open(self) -> bool:  # whether this start may write to the store
        return self._access is not None and self._access.is_open

    def has_compared(self, partition: Partition) -> bool:
        """Whether this start has read the store's own manifest. Nothing is committed before that."""
        return partition in self._compared

    def is_tiered(self, partition: Partition) -> bool:
        return self._client is not None and partition.log.hot.settings.remote_storage_enable

    def is_offloaded(self, partition: Partition) -> bool:
        """Whether each closed segment goes to the bucket."""
        return self.is_tiered(partition) and not partition.log.hot.settings.remote_copy_disable

    def _plan(self, partition: Partition, now: Now) -> TieringPlan:
        hot, tiered = partition.log.hot, partition.log
        if not self._is_open or not self.is_offloaded(partition) or partition.read_error is not None:
            return TieringPlan(False, ())
        settings = hot.settings
        return plan_tiering(
            hot.segments(),
            tier_end=tiered.tier.end if tiered.tier is not None else 0,
            bound=partition.state.last_stable_offset,
            log_start=hot.log_start_offset,
            now_ms=now.steady_ms,
            segment_ms=settings.segment_ms,
            max_lag_ms=self._policy.max_lag_ms(partition.partition.topic),
            seal_below=partition.seal_below,
        )

    def _evictions(self, partition: Partition, now: Now) -> list[int]:
        """Returns the ends of the evictable local segments, in order: those below log start, and those in the manifest if this
        start has read it. Returns none while the store shows less than was seen: the local copy may be the only one."""
        if partition in self.lineage or not partition.leads:
            return []
        hot, tier = partition.log.hot, partition.log.tier
        settings, segments = hot.settings, hot.segments()
        limits = LocalLimits(settings.local_retention_ms, settings.local_retention_bytes)
        known = tier is not None and self._is_open and self.is_tiered(partition) and partition in self._compared
        doomed = plan_eviction(
            segments,
            durable_end=tier.end if known and tier is not None else None,
            log_start=hot.log_start_offset,
            limits=limits,
            now=now,
        )
        return [segment.end for segment, _ in zip(segments, doomed, strict=False)]

    # --- how ----------------------------------------------------------------------------------------------------------
    async def _apply_local_retention(self, partition: Partition) -> None:
        hot = partition.log.hot
        async with self._local_retention_slots:
            if hot.recovery_point < hot.active_start_offset:
                # As Kafka does after each roll. After a crash, recovery then has to read only about one segment.
                await self._flusher.flush(partition)
            await self._evict(partition)

    async def _offload(self, partition: Partition) -> None:
        wanted = self.is_tiered(partition) or partition.log.tier is not None or partition.is_recovering
        if not (self._is_open and partition.leads and (wanted or self._must_claim(partition))):
            return
        async with self._slots:
            if partition not in self._compared or partition.is_recovering:
                await self._compare(partition)
        # One segment per turn: partitions with long queues must not starve others.
        while await self._in_turn(partition):
            # The delay takes no slot, because other partitions may be free to offload.
            while (delay_s := self._delay_s(partition)) > 0:
                await self._clock.sleep(delay_s)

    async def _in_turn(self, partition: Partition) -> bool:
        """Offloads the next segment unless quotas delay it. If there is none, hides deleted records and returns False."""
        async with self._slots:
            if (offload := self._next_offload(partition)) is not None:
                if self._delay_s(partition) == 0:
                    await self._offload_segment(partition, offload)
                return True
            await self._hide_deleted(partition)
            return False

    def _delay_s(self, partition: Partition) -> float:
        """Seconds by which the quotas delay the partition's next offload; 0 for a held log."""
        if partition.phase is Phase.HANDING_OVER:
            return 0.0
        moves = self._policy.is_throttled_move(partition.partition)
        return self._policy.quotas.delay_s(self._clock.monotonic(), moves=moves)

    def _next_offload(self, partition: Partition) -> Offload | None:
        plan = self._plan(partition, self._policy.now())
        if plan.close_active:
            partition.log.hot.roll()
            plan = self._plan(partition, self._policy.now())
        if plan.hole is not None:
            raise StorageError(
                f"{partition.partition}: offset {plan.hole} is in no local segment and not in the bucket"
            )
        return plan.offloads[0] if plan.offloads else None

    async def _compare(self, partition: Partition) -> None:
        """Reads the store's own manifest, before the first commit of this start."""
        await self._policy.publish(partition.partition.topic)
        manifest = await self.load(partition)
        arrives = has_to_arrive(partition) and manifest is not None and manifest.end >= partition.moved_end
        is_outrun = manifest is not None and manifest.leader_epoch > partition.state.leader_epoch
        # A possible copy is claimed even if nothing is tiered: tiering may be switched on later in both directories. A node
        # with metadata from before a move must not commit, nor lead without the records that follow: its claim is refused.
        if arrives or is_outrun or self._policy.may_be_copy():
            await self._claim(partition, manifest)
        self.lineage.caught_up(partition)
        await reconcile(partition)
        self._compared.add(partition)
        self._local_retention.request(partition)

    def _must_claim(self, partition: Partition) -> bool:
        """Whether the manifest must be claimed, even if nothing is offloaded, because the directory may be a copy."""
        return self._is_open and self._policy.may_be_copy() and partition not in self._compared

    async def _claim(self, partition: Partition, manifest: Manifest | None) -> None:
        """Commits this start's incarnation and the leader epoch. `cluster.json` alone does not stop a running node: the
        original of a copied directory would keep extending the manifest, and the copy's records would be discarded."""
        assert self._client is not None
        writer, before, epoch = self._writer(), partition.log.tier, partition.state.leader_epoch
        if manifest is not None and (manifest.incarnation, manifest.leader_epoch) == (writer.incarnation, epoch):
            return
        with self.lineage.asking(partition) as seen:
            claimed = await self._client.ask(Claim(partition.ids, writer, epoch, seen))
        say_committed(partition, claimed, before)
        await self.accept(partition, claimed)

    async def reload(self, partition: Partition) -> Manifest:
        """Reads and accepts the store's own manifest. Raises TierCorrupt if there is none and none was seen."""
        manifest = await self.load(partition)
        if manifest is None:
            raise TierCorrupt(f"the manifest of {partition.partition} is gone from the bucket; run `tidelog fsck`")
        return manifest

    async def load(self, partition: Partition) -> Manifest | None:
        assert self._client is not None
        with self.lineage.asking(partition) as seen:
            manifest = await self._client.ask(LoadManifest(partition.ids, self._writer(), seen))
            self.lineage.check_joins(partition, manifest)
            if manifest is not None:
                await self.accept(partition, manifest)
        return manifest

    async def _offload_segment(self, partition: Partition, offload: Offload) -> None:
        assert self._client is not None
        await self._flusher.flush(partition)
        hot = partition.log.hot
        source = hot.reader.offload_source(offload.start, offload.end)
        if source is None:
            raise StorageError(
                f"{partition.partition}: [{offload.start}, {offload.end}) has no batch; see `tidelog log dump {hot.directory}`"
            )
        snapshot, batches = await self._producers(hot, source.end_offset)
        # Segments may have been swapped meanwhile; none is swapped from here until the extension ends.
        if all(segment.end != offload.end for segment in hot.segments()):
            return  # a longer segment has replaced them: the next turn plans it
        source = hot.reader.offload_source(offload.start, offload.end) or source
        job = ExtendJob(
            path=source.path,
            position=source.position,
            length=source.length,
            base=min(source.base_offset, offload.start),  # offsets before the first batch may be a hole of the log
            end=source.end_offset,
            leader_epoch=partition.state.leader_epoch,
            last_record_epoch=hot.epoch_at(source.end_offset - 1),
            epochs=tuple(e for e in hot.end.epochs.entries() if e.start_offset < source.end_offset),
            producer_snapshot=snapshot,
            aborted=tuple(hot.reader.aborted_transactions(source.base_offset, source.end_offset)),
            log_start=hot.log_start_offset,
            producer_batches=batches,
        )
        with self.extensions.under_way(partition, job):
            manifest = await self._extend(partition, job)
        # Another writer may have extended the manifest first. Then its segments win (I9).
        await reconcile(partition)
        if manifest.end <= offload.start:
            raise TierUnavailable(
                f"{partition.partition}: the manifest still ends at {manifest.end}; the commit is retried"
            )

    async def _extend(self, partition: Partition, job: ExtendJob) -> Manifest:
        """Offloads, commits, and accepts the new manifest."""
        assert self._client is not None
        began, before = self._clock.monotonic(), partition.log.tier
        partition.counts.offloads += 1
        self._policy.quotas.count(job.length, began, moves=self._policy.is_throttled_move(partition.partition))
        try:
            async with sendable(job) as sent:
                with self.lineage.asking(partition) as seen:
                    manifest = await self._client.ask(Extend(partition.ids, self._writer(), sent, seen))
        except LogError:
            partition.counts.failed_offloads += 1
            raise
        if manifest.end >= job.end:
            partition.counts.offloaded_bytes += job.length
            took_ms = round((self._clock.monotonic() - began) * 1000)
            events.info(
                log,
                "offload.finished",
                partition=partition.partition,
                base_offset=job.base,
                end_offset=job.end,
                bytes=job.length,
                ms=took_ms,
            )
        say_committed(partition, manifest, before)
        await self.accept(partition, manifest)
        return manifest

    async def _producers(self, hot: HotLog, end: int) -> tuple[str, str]:
        """Returns the paths of the files with the producers at exactly `end`. Flushing has usually written them."""
        paths = hot.reader.snapshot_paths(end)
        if not await asyncio.get_running_loop().run_in_executor(None, is_sound, *paths, end):
            hot.reader.write_snapshot(end)
        return paths

    async def _hide_deleted(self, partition: Partition) -> None:
        """Raises the manifest's log start if the manifest still shows records deleted here, as it may after an offload."""
        if self._client is not None and _shows_deleted(partition):
            log_start = partition.log.log_start_offset
            before = partition.log.tier
            with self.lineage.asking(partition) as seen:
                manifest = await self._client.ask(RaiseLogStart(partition.ids, self._writer(), log_start, seen))
            say_committed(partition, manifest, before)
            await self.accept(partition, manifest)

    async def accept(self, partition: Partition, manifest: Manifest) -> None:
        """Accepts a newer manifest that contains the previous one (`AcceptedManifests`)."""
        await self._manifests.accept(partition, manifest, self._writer())

    def _is_newer(self, partition: Partition) -> None:
        self._local_retention.request(partition)
        self._notify()

    async def current_manifest(self, partition: Partition) -> Manifest:
        """The current manifest, read from the copy beside the segments. If the disk has lost or changed the copy, the manifest
        is read from the store and saved again. Raises TierUnavailable while neither has it."""
        manifest = await self._manifests.current(partition)
        if manifest is None:
            manifest = await self.reload(partition)
            if not await self._manifests.save_again(partition, manifest):
                raise TierUnavailable(f"{partition.partition}: its manifest is changing; retry")
        return manifest

    async def _evict(self, partition: Partition) -> None:
        """Evicts segments below log start at once, and offloaded ones after a read of the store's manifest."""
        log_start, ends = partition.log.hot.log_start_offset, self._evictions(partition, self._policy.now())
        await evict(partition, [end for end in ends if end <= log_start])
        if any(end > log_start for end in ends):
            await self.load(partition)
            ends = self._evictions(partition, self._policy.now())
            await evict(partition, itertools.takewhile(lambda _: partition not in self.lineage, ends))

    def _writer(self) -> ManifestWriter:
        if self._access is None or self._access.writer is None:
            raise TierUnavailable("the object store has not answered yet; retry")
        return self._access.writer

    # --- on request ---------------------------------------------------------------------------------------------------
    async def seal(self, partitions: Sequence[Partition], *, wait: bool, timeout_ms: int) -> list[SealedPartition]:
        """Offloads all records so far. Raises RequestTimedOut, naming the partitions, if waiting exceeds `timeout_ms`."""
        untiered = [p for p in partitions if not self.is_tiered(p)]
        if untiered:
            raise InvalidRequest(
                f"{untiered[0].partition} is not tiered: the node has no store, or remote.storage.enable is false"
            )
        if any(p.log.hot.settings.remote_copy_disable for p in partitions):
            raise InvalidRequest(
                f"{partitions[0].partition.topic} has remote.log.copy.disable=true: nothing is offloaded"
            )
        for each in partitions:
            each.check_leads()
        ends = {p: p.log.end_offset for p in partitions}
        for partition, end in ends.items():
            partition.seal_below = max(partition.seal_below, end)
            self.kick(partition)
        if wait:
            await self._wait_until_tiered(ends, timeout_ms)
        return [
            SealedPartition(p.partition.partition, end, p.log.tiered_end)
            for p, end in sorted(ends.items(), key=lambda item: item[0].partition.partition)
        ]

    async def _wait_until_tiered(self, ends: Mapping[Partition, int], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not all(_is_tiered(p, end) for p, end in ends.items()):
                    await self._moved.wait()
        except TimeoutError:
            late = {p: end for p, end in ends.items() if not _is_tiered(p, end)}
            raise not_offloaded(late, timeout_ms, self.lineage.reason) from None

    async def log_start_raised(self, partition: Partition) -> None:
        """Returns once the manifest hides all records below the partition's log start, including those being offloaded;
        DeleteRecords answers then. Raises TierUnavailable while the store's content is unknown: this start has not read it,
        or the outcome of an offload is unknown."""
        self.kick(partition)
        await self.extensions.hiding(partition, partition.log.log_start_offset)
        partition.check_leads()
        if self._client is not None and _shows_deleted(partition):
            if not self._is_open or partition not in self._compared:
                raise TierUnavailable(
                    f"{partition.partition}: deleted here, but the object store has not answered yet; retry"
                )
            await self._hide_deleted(partition)
        self._notify()

    def _notify(self) -> None:
        """Wakes callers that wait for the bucket."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def gained(self, partition: Partition, leader_epoch: int) -> None:
        """Makes the next tick check a partition that this node leads now, because the partition may wait for the store."""
        partition.tier_due_ms = 0

    def lost(self, partition: Partition, leader_epoch: int) -> None:
        """Stops offloading, because another node may commit the partition's manifest now. This node compares again before its
        next commit."""
        self._compared.discard(partition)
        self._offloading.forget(partition)
        asyncio.get_running_loop().call_soon(self._notify)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that is about to be deleted."""
        self._compared.discard(partition)
        self.lineage.forget(partition)
        self._manifests.forget(partition)
        self.extensions.forget(partition)
        self._offloading.forget(partition)
        self._local_retention.forget(partition)
        asyncio.get_running_loop().call_soon(self._notify)


def _shows_deleted(partition: Partition) -> bool:
    """Whether the manifest still shows records below the local log start."""
    tier = partition.log.tier
    return tier is not None and tier.log_start < min(partition.log.log_start_offset, tier.end)


def _is_tiered(partition: Partition, end: int) -> bool:
    """Whether all live records below `end` are in the bucket. Raises NotLeader or UnknownTopicOrPartition."""
    partition.check_leads()
    return partition.log.tiered_end >= end or partition.log.log_start_offset >= end
