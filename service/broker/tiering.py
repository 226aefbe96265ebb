"""Moves closed ranges of the partitions to the bucket, and lets local segments go once they are there.

One worker task a partition at a time, a bounded number in all. Order for each range: fsync, upload, verify and commit (in
the tier process), save the root locally and synced, only then evict. What fails is planned anew from the newest root; a
writer that was fenced ends the node.

Not promised: that an upload is under way at once. A partition waits its turn, and while the store is away everything waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from grpc_api.contract.log import SealedPartition
from service.broker.flusher import Flusher
from service.broker.leading import adopt, waits
from service.broker.partition import Partition
from service.broker.roots import write_root
from service.broker.store_access import StoreAccess
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.backoff import Backoff, BackoffSettings
from storage_tiers.cold.manifest import Ids, Root, Writer
from storage_tiers.cold.tier_client import TierClient
from storage_tiers.cold.uploader import ExtendJob
from storage_tiers.errors import (
    Advice,
    FencedWriter,
    InvalidRequest,
    LogError,
    RequestTimedOut,
    StorageError,
    TierUnavailable,
)
from storage_tiers.files import Files
from storage_tiers.policy.eviction import LocalLimits, plan_eviction
from storage_tiers.policy.tiering import TieringPlan, Upload, plan_tiering

log = logging.getLogger(__name__)

#: Partitions that are worked on at once.
CONCURRENT_PARTITIONS = 4
#: Bounds of the pause between two looks at a partition that has nothing to do, in ms.
SHORTEST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 30_000
#: Seconds between attempts on a partition whose work failed.
RETRY = BackoffSettings(0.2, 15.0)


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """What tiering asks of the node: `max_lag_ms(topic)` is `tidelog.tier.max.lag.ms`; `publish(topic)` makes `topic.json`
    name the topic, before the first upload, so that no reader finds ranges of a topic that it cannot name."""

    max_lag_ms: Callable[[str], int]
    publish: Callable[[str], Awaitable[None]]


class Tiering:
    """`client` and `access` are None on a node without a store: then nothing is tiered and eviction is by log start."""

    def __init__(
        self,
        client: TierClient | None,
        access: StoreAccess | None,
        *,
        ids_of: Callable[[Partition], Ids],
        policy: TieringPolicy,
        flusher: Flusher,
        files: Files,
        clock: Clock,
        rng: Rng,
        on_fatal: Callable[[LogError], None],
    ) -> None:
        self._client = client
        self._access = access
        self._ids_of = ids_of
        self._policy = policy
        self._flusher = flusher
        self._files = files
        self._clock = clock
        self._rng = rng
        self._on_fatal = on_fatal
        self._slots = asyncio.Semaphore(CONCURRENT_PARTITIONS)
        self._working: dict[Partition, asyncio.Task[None]] = {}
        self._again: set[Partition] = set()
        self._backoffs: dict[Partition, Backoff] = {}
        self._compared: set[Partition] = set()
        self._accepting: dict[Partition, asyncio.Lock] = {}
        self._rooted: asyncio.Condition = asyncio.Condition()

    # --- when ---------------------------------------------------------------------------------------------------------
    def kick(self, partition: Partition) -> None:
        """Something may be there to upload or evict: looks soon."""
        if partition.deleted:
            return
        partition.tier_due_ms = 0
        if partition in self._working:
            self._again.add(partition)
            return
        if self._access is not None and not self._access.opened.is_set():
            return
        task = asyncio.get_running_loop().create_task(self._work(partition), name=f"tier {partition.partition}")
        self._working[partition] = task
        task.add_done_callback(lambda _: self._ended(partition))

    def tick(self, partitions: Sequence[Partition]) -> None:
        """Called every second or so: what the clock closes, retries, and evicts."""
        now_ms = self._clock.unix_ms()
        for partition in partitions:
            if now_ms < partition.tier_due_ms or partition in self._working:
                continue
            if self._has_work(partition, now_ms):
                self.kick(partition)
            else:
                partition.tier_due_ms = now_ms + self._pause_ms(partition)

    def _pause_ms(self, partition: Partition) -> int:
        """How long the clock alone can change nothing worth noticing: a tenth of the shortest age that counts."""
        settings = partition.log.hot.settings
        ages = [settings.segment_ms, self._policy.max_lag_ms(partition.partition.topic)]
        if settings.local_retention_ms >= 0:
            ages.append(settings.local_retention_ms)
        return max(SHORTEST_PAUSE_MS, min(LONGEST_PAUSE_MS, min(ages) // 10))

    def _has_work(self, partition: Partition, now_ms: int) -> bool:
        if waits(partition):
            return True
        plan = self._plan(partition, now_ms)
        return plan.close_active or bool(plan.uploads) or bool(self._evictions(partition, now_ms))

    async def close(self) -> None:
        """Gives up what is under way; every step may be cut anywhere."""
        for task in tuple(self._working.values()):
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _ended(self, partition: Partition) -> None:
        del self._working[partition]
        if partition in self._again:
            self._again.discard(partition)
            self.kick(partition)

    # --- what ---------------------------------------------------------------------------------------------------------
    def _tiered(self, partition: Partition) -> bool:
        return self._client is not None and partition.log.hot.settings.remote_storage_enable

    def _plan(self, partition: Partition, now_ms: int) -> TieringPlan:
        hot, tiered = partition.log.hot, partition.log
        if not self._tiered(partition) or partition.reads_blocked is not None:
            return TieringPlan(False, ())
        settings = hot.settings
        return plan_tiering(
            hot.segments(),
            tier_end=tiered.root.end if tiered.root is not None else 0,
            bound=partition.state.high_watermark,
            log_start=hot.log_start_offset,
            now_ms=now_ms,
            segment_ms=settings.segment_ms,
            max_lag_ms=self._policy.max_lag_ms(partition.partition.topic),
            seal_below=partition.seal_below,
        )

    def _evictions(self, partition: Partition, now_ms: int) -> int:
        """Offset below which local segments may go; 0 for nothing."""
        hot, root = partition.log.hot, partition.log.root
        settings = hot.settings
        limits = LocalLimits(settings.local_retention_ms, settings.local_retention_bytes)
        segments = hot.segments()
        durable_end = root.end if root is not None and self._tiered(partition) else None
        doomed = plan_eviction(
            segments, durable_end=durable_end, log_start=hot.log_start_offset, limits=limits, now_ms=now_ms
        )
        return max((s.end for s in segments if doomed and s.base == doomed[-1].base), default=0)

    # --- how ----------------------------------------------------------------------------------------------------------
    async def _work(self, partition: Partition) -> None:
        failure: LogError | None = None
        async with self._slots:
            try:
                if self._tiered(partition):
                    await self._offload(partition)
                await self._evict(partition)
            except LogError as error:
                failure = error
            except OSError as error:
                failure = StorageError(f"{partition.partition}: {error}")
        # Waiting for the next attempt holds no slot: other partitions may have better luck.
        if failure is None:
            self._backoffs.pop(partition, None)
        else:
            await self._failed(partition, failure)

    async def _failed(self, partition: Partition, error: LogError) -> None:
        if partition.deleted:
            return
        if error.advice is Advice.STOP:
            self._on_fatal(error)
            return
        log.warning("%s is not offloaded yet: %s", partition.partition, error)
        backoff = self._backoffs.setdefault(partition, Backoff(RETRY, self._rng))
        await self._clock.sleep(backoff.next_delay())

    async def _offload(self, partition: Partition) -> None:
        if partition not in self._compared:
            await self._compare(partition)
        while True:
            plan = self._plan(partition, self._clock.unix_ms())
            if plan.close_active:
                partition.log.hot.roll()
                continue
            if plan.hole is not None:
                raise StorageError(
                    f"{partition.partition}: offset {plan.hole} is in no local segment and not in the bucket"
                )
            if not plan.uploads:
                return
            await self._upload(partition, plan.uploads[0])

    async def _compare(self, partition: Partition) -> None:
        """The store's own root is looked at before the first commit of this start."""
        assert self._client is not None
        await self._policy.publish(partition.partition.topic)
        root = await self._client.load_root(self._ids_of(partition), self._writer())
        if root is not None:
            await self.accept(partition, root)
        await adopt(partition)
        self._compared.add(partition)

    async def _upload(self, partition: Partition, upload: Upload) -> None:
        assert self._client is not None
        await self._flusher.flush(partition)
        hot = partition.log.hot
        source = hot.upload_source(upload.start, upload.end)
        if source is None:
            return
        job = ExtendJob(
            path=source.path,
            position=source.position,
            length=source.length,
            base=min(source.base_offset, upload.start),  # offsets before the first batch may be a hole of the log
            end=source.end_offset,
            leader_epoch=partition.state.leader_epoch,
            last_record_epoch=hot.epoch_at(source.end_offset - 1),
            epochs=tuple(e for e in hot.epochs.entries() if e.start_offset < source.end_offset),
            producer_snapshot=hot.state_at(source.end_offset),
            aborted=tuple(hot.aborted_transactions(source.base_offset, source.end_offset)),
            log_start=hot.log_start_offset,
        )
        root = await self._client.extend(self._ids_of(partition), self._writer(), job)
        await self.accept(partition, root)
        # Another writer may have extended the manifest first: what it wrote there stands, and wins (I9).
        await adopt(partition)
        if root.end <= upload.start:
            raise TierUnavailable(f"{partition.partition}: the manifest still ends at {root.end}; it is extended again")

    async def accept(self, partition: Partition, root: Root) -> None:
        """Takes a newer root over: saved and synced first, then current, so that eviction may follow it.

        FencedWriter, which ends the node, if a newer incarnation has committed it. UnknownTopicOrPartition if the topic was
        deleted meanwhile."""
        _check_not_deleted(partition)
        if root.incarnation > (self._writer().incarnation or 0):
            fenced = FencedWriter(
                f"the manifest of {partition.partition} was committed by incarnation {root.incarnation}, this node is "
                f"{self._writer().incarnation}: a copy of its directory has run. Stop this node, or start it on an empty "
                "directory"
            )
            self._on_fatal(fenced)
            raise fenced
        async with self._accepting.setdefault(partition, asyncio.Lock()):
            known = partition.log.root
            if known is not None and root.commit <= known.commit:
                return
            await asyncio.get_running_loop().run_in_executor(None, self._save, partition, root)
            partition.log.root = root
        async with self._rooted:
            self._rooted.notify_all()

    def _save(self, partition: Partition, root: Root) -> None:
        # Looked at again in the thread: the directory's name may have become another topic's in the queue.
        _check_not_deleted(partition)
        write_root(self._files, partition.log.hot.directory, root)

    async def _evict(self, partition: Partition) -> None:
        below = self._evictions(partition, self._clock.unix_ms())
        if below:
            # In a thread: the file system frees a large file's blocks before unlink returns.
            unlink = asyncio.get_running_loop().run_in_executor
            for path in partition.log.hot.evict_below(below):
                await unlink(None, self._files.unlink, path)

    def _writer(self) -> Writer:
        assert self._access is not None
        assert self._access.writer is not None
        return self._access.writer

    # --- asked for ----------------------------------------------------------------------------------------------------
    async def seal(self, partitions: Sequence[Partition], *, wait: bool, timeout_ms: int) -> list[SealedPartition]:
        """All records so far shall be in the bucket soon. RequestTimedOut, naming the partitions, if it takes longer."""
        untiered = [p for p in partitions if not self._tiered(p)]
        if untiered:
            raise InvalidRequest(
                f"{untiered[0].partition} is not tiered: the node has no store, or remote.storage.enable is false"
            )
        ends = {p: p.log.end_offset for p in partitions}
        for partition, end in ends.items():
            partition.seal_below = max(partition.seal_below, end)
            self.kick(partition)
        if wait:
            try:
                async with asyncio.timeout(timeout_ms / 1000), self._rooted:
                    await self._rooted.wait_for(lambda: all(_is_tiered(p, end) for p, end in ends.items()))
            except TimeoutError:
                late = ", ".join(str(p.partition) for p, end in ends.items() if not _is_tiered(p, end))
                raise RequestTimedOut(
                    f"after {timeout_ms} ms not everything of {late} is in the bucket; it goes on, ask again"
                ) from None
        return [
            SealedPartition(p.partition.partition, end, p.log.tiered_end)
            for p, end in sorted(ends.items(), key=_number)
        ]

    async def log_start_raised(self, partition: Partition) -> None:
        """Returns once the manifest hides what lies below the partition's log start (DeleteRecords answers then)."""
        root = partition.log.root
        if (
            not self._tiered(partition)
            or root is None
            or root.log_start >= min(partition.log.log_start_offset, root.end)
        ):
            self.kick(partition)
            return
        assert self._client is not None
        root = await self._client.raise_log_start(
            self._ids_of(partition), self._writer(), partition.log.log_start_offset
        )
        await self.accept(partition, root)
        self.kick(partition)

    def forget(self, partition: Partition) -> None:
        """The partition was deleted."""
        self._compared.discard(partition)
        self._backoffs.pop(partition, None)
        self._accepting.pop(partition, None)
        self._again.discard(partition)
        task = self._working.get(partition)
        if task is not None:
            task.cancel()


def _check_not_deleted(partition: Partition) -> None:
    if partition.deleted:
        partition.check_readable()


def _is_tiered(partition: Partition, end: int) -> bool:
    return partition.log.tiered_end >= end or partition.log.log_start_offset >= end


def _number(item: tuple[Partition, int]) -> int:
    return item[0].partition.partition
