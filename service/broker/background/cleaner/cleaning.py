"""Compacts logs: cleans the dirtiest due log in the cleaner process, swaps its segments, and repeats.

A partition's local segments and its segments in the bucket are cleaned separately, each from its own clean point
(`cold_cleaning.py` cleans the bucket's). A reader takes the bucket's segments up to the local start, which may move while it
reads. So a tombstone or marker of one tier also hides values in the other. The cleaner removes a local tombstone or marker only
below the offset up to which the bucket is clean, or if the bucket holds nothing of the partition. It removes a tombstone or
marker in the bucket only below the offset up to which the local log is clean, or below the local start.

Invariants: one log is cleaned at a time; segments are swapped oldest first, and never while they are uploaded. The local
segments of a log that is offloaded are cleaned only below the manifest's end. A log may wait as long as others are dirtier.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

from service.broker.background.cleaner.cleaner_process import CleanerProcess
from service.broker.background.cleaner.cleaning_figures import CleaningFigures
from service.broker.background.cleaner.cold_cleaning import ColdCleaning
from service.broker.background.flusher import Flusher
from service.broker.background.tiering import Tiering
from service.broker.background.turns import GLANCES_A_TURN, LOOKS_A_TURN, slices
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME as SAVED_MANIFEST
from storage_tiers.compaction.batches import Cleaned, LastRecord
from storage_tiers.compaction.clean_point import (
    CleanPoint,
    clean_point,
    cleaned_to,
    read_clean_point,
    write_clean_point,
)
from storage_tiers.compaction.cleaning_inputs import cleaning_of, last_records
from storage_tiers.compaction.protocol import CleanerAnswer, CleaningRequest, KeysRead
from storage_tiers.compaction.rewriter import CleaningJob, remove_cleaned
from storage_tiers.errors import LogError, StorageError
from storage_tiers.files import Files
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.segment import SegmentInfo
from storage_tiers.hot.swap import RewrittenSegment, SegmentSwap
from storage_tiers.policy.compaction import CleaningLimits, CleaningPlan, plan_cleaning
from storage_tiers.policy.segments import Now
from storage_tiers.records.batch import HEADER_BYTES, read_header

log = logging.getLogger(__name__)

#: Pause in ms before a log whose cleaning failed is cleaned again.
RETRY_MS = 300_000


class CleanerSettings(NamedTuple):
    """`log.cleaner.*`. `map_bytes` and `map_load` bound the map of keys. `bytes_per_second` of 0 stops the cleaner, as in
    Kafka, where it waits for ever; a negative value means no bound."""

    is_enabled: bool
    backoff_ms: int
    map_bytes: int
    map_load: float
    bytes_per_second: float

    @property
    def may_clean(self) -> bool:
        return self.is_enabled and self.bytes_per_second != 0

    def are_for_the_pass_of(self, others: CleanerSettings) -> bool:
        """Whether both settings lead to the same cleaning request. `backoff_ms` is not part of the request."""
        return self._replace(backoff_ms=others.backoff_ms) == others


class TopicCleaning(NamedTuple):
    """A topic's configs for the cleaner. `delete_retention_ms` is the time for which a tombstone is kept after its first
    cleaning."""

    limits: CleaningLimits
    delete_retention_ms: int


class CleaningPolicy(NamedTuple):
    """The current configs. `now` is the time by which records expire."""

    settings: Callable[[], CleanerSettings]
    topic: Callable[[str], TopicCleaning]
    now: Callable[[], Now]


class CleaningParts(NamedTuple):
    """The cleaner process, the flusher, and the cleaning of the bucket, which is None on a node without a store."""

    process: CleanerProcess
    flusher: Flusher
    cold: ColdCleaning | None


class _Dirty(NamedTuple):
    """A partition's segments to clean, in one of its tiers."""

    partition: Partition
    plan: CleaningPlan
    is_remote: bool


class _Abandoned(Exception):
    """The log, or the cleaner's settings, changed during the cleaning."""


class Cleaning:
    """Cleans the node's due logs one at a time, the dirtiest first. A failure is logged, and the cleaning is tried again after
    five minutes."""

    def __init__(
        self,
        partitions: Partitions,
        tiering: Tiering,
        policy: CleaningPolicy,
        parts: CleaningParts,
        *,
        files: Files,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._policy = policy
        self._process, self._flusher, self._cold = parts
        self._files = files
        self._clock = clock
        self._rng = rng
        #: Clean points by log. A reopened log is another key.
        self._points: dict[HotLog, CleanPoint | None] = {}
        #: The steady time in ms of the next attempt. The key is the log whose cleaning failed, and whether it failed in the
        #: bucket.
        self._retries: dict[tuple[HotLog, bool], int] = {}
        self._due_ms = 0
        self.figures = CleaningFigures(clock.steady_ms())

    @property
    def uncleanable(self) -> frozenset[HotLog]:
        """The logs whose last cleaning failed, in either tier."""
        return frozenset(hot for hot, _ in self._retries)

    async def tick(self) -> None:
        """Cleans all logs that are due, the dirtiest first, then rests for `log.cleaner.backoff.ms`."""
        if self._clock.steady_ms() < self._due_ms or not self._policy.settings().may_clean:
            return
        try:
            while (found := await self._dirtiest()) is not None and self._policy.settings().may_clean:
                await self._try(found)
        finally:
            await self._process.end()
        self._due_ms = self._clock.steady_ms() + self._policy.settings().backoff_ms

    # --- which --------------------------------------------------------------------------------------------------------
    async def _dirtiest(self) -> _Dirty | None:
        found: _Dirty | None = None
        known: set[HotLog] = set()
        self.figures.look(self._clock.steady_ms())
        async for some in slices(self._partitions, LOOKS_A_TURN):
            for partition in filter(self._may_clean, some):
                known.add(partition.log.hot)
                for dirty in filter(None, (self._local(partition), await self._remote(partition))):
                    self.figures.found(dirty.plan)
                    found = _dirtier(found, dirty)
        for hot in self._points.keys() - known:
            self._points.pop(hot)
        self._retries = {key: ms for key, ms in self._retries.items() if key[0] in known}
        if self._cold is not None:
            self._cold.forget_others(known)
        return found

    def _may_clean(self, partition: Partition) -> bool:
        """Whether the log may be cleaned. False while the bucket's log may replace it, and while the bucket is behind."""
        return (
            partition.leads
            and partition.log.hot.settings.cleanup_compact
            and not partition.is_recovering
            and partition.read_error is None
            and partition not in self._tiering.lineage
        )

    def _local(self, partition: Partition) -> _Dirty | None:
        if self._waits_for_retry(partition, is_remote=False):
            return None
        try:
            plan = self._plan(partition)
        except (LogError, OSError) as error:
            self._retry_later(partition, is_remote=False, error=error)
            return None
        return self._planned(partition, plan, is_remote=False)

    async def _remote(self, partition: Partition) -> _Dirty | None:
        if self._cold is None or self._waits_for_retry(partition, is_remote=True):
            return None
        limits = self._policy.topic(partition.partition.topic).limits
        try:
            plan = await self._cold.plan(partition, self._policy.now().expiry_ms, limits)
        except (LogError, OSError) as error:
            self._retry_later(partition, is_remote=True, error=error)
            return None
        return self._planned(partition, plan, is_remote=True)

    def _planned(self, partition: Partition, plan: CleaningPlan | None, *, is_remote: bool) -> _Dirty | None:
        """Clears the failure when the log is readable and needs no cleaning."""
        if plan is None or not plan.is_due:
            self._retries.pop((partition.log.hot, is_remote), None)
        return None if plan is None else _Dirty(partition, plan, is_remote=is_remote)

    def _waits_for_retry(self, partition: Partition, *, is_remote: bool) -> bool:
        return self._clock.steady_ms() < self._retries.get((partition.log.hot, is_remote), 0)

    def _plan(self, partition: Partition) -> CleaningPlan | None:
        hot = partition.log.hot
        if hot.segment_count == 1:
            return None
        segments = hot.durable_segments()
        if len(segments) < hot.segment_count - 1:
            self._flusher.request(partition)  # a segment was just closed, and its files are not complete yet
        return plan_cleaning(
            segments,
            cleaned_to=cleaned_to(self._point(hot), segments, hot.epoch_at),
            bound=self._bound(partition),
            now_ms=self._policy.now().expiry_ms,
            limits=self._policy.topic(partition.partition.topic).limits,
            first_timestamp=_first_timestamp,
        )

    def _bound(self, partition: Partition) -> int:
        """The offset below which local records may be cleaned. A record that is not in the bucket yet supersedes nothing: if
        the disk is lost, the bucket must still hold the newest value of each key below the manifest's end."""
        stable = partition.state.last_stable_offset
        return min(stable, partition.log.tiered_end) if self._tiering.is_offloaded(partition) else stable

    def _point(self, hot: HotLog) -> CleanPoint | None:
        if hot not in self._points:
            self._points[hot] = read_clean_point(hot.directory)
        return self._points[hot]

    # --- how ----------------------------------------------------------------------------------------------------------
    async def _try(self, due: _Dirty) -> None:
        settings = self._policy.settings()
        try:
            if (swap := due.partition.log.hot.swapping.swap) is not None:
                await asyncio.to_thread(swap.end)  # ends an earlier swap that the disk refused to commit
            await (self._clean_remote if due.is_remote else self._clean)(due.partition, due.plan, settings)
        except _Abandoned:
            await self._give_up(due.partition.log.hot)
        except (LogError, OSError) as error:
            await self._give_up(due.partition.log.hot)
            self._retry_later(due.partition, is_remote=due.is_remote, error=error)

    async def _give_up(self, hot: HotLog) -> None:
        """Ends the process, and a swap that the disk has refused, because nothing is evicted during a swap. Removes the files
        that were written, because they take space on a full disk."""
        await self._process.end()
        if hot.swapping.swap is not None:
            with suppress(OSError):  # the next attempt, truncation or start ends it
                await asyncio.to_thread(hot.swapping.swap.end)
        if not hot.swapping.is_under_way:
            await asyncio.to_thread(remove_cleaned, self._files, hot.directory)

    def _retry_later(self, partition: Partition, *, is_remote: bool, error: Exception) -> None:
        if partition.deleted:
            return
        self._retries[partition.log.hot, is_remote] = self._clock.steady_ms() + RETRY_MS
        events.warning(log, "log.not_cleaned", partition=partition.partition, tier=_tier(is_remote), error=error)

    async def _clean(self, partition: Partition, plan: CleaningPlan, settings: CleanerSettings) -> None:
        hot = partition.log.hot
        drops_below = self._hidden_below(partition)
        begin = cleaning_of(hot, dirty_start=plan.dirty_start, end=plan.end, fences=(partition.log.tiered_end,))
        if begin is None:
            raise _Abandoned
        cleaning = await asyncio.to_thread(begin)
        request = await self._request(partition, cleaning, plan, settings, drops_below)
        began_ms = self._clock.steady_ms()

        async def replace(new: RewrittenSegment) -> None:
            await self._swap(partition, hot, new, drops_below)

        try:
            async with aclosing(self._process.run(request)) as answers:
                reached, counted = await self._replace_segments(answers, replace, partition, plan, settings)
        except StorageError:
            if hot.local_start_offset > cleaning.segments[0].base:
                raise _Abandoned from None  # the segments were evicted before the cleaner read them
            raise
        await self._save_clean_point(partition, hot, reached)
        self.figures.cleaned(_tier(False), counted, self._clock.steady_ms() - began_ms, settings.map_bytes)
        _log_cleaned(partition, reached, counted, is_remote=False)

    async def _clean_remote(self, partition: Partition, plan: CleaningPlan, settings: CleanerSettings) -> None:
        assert self._cold is not None
        hot = partition.log.hot
        drops_below = self._shown_below(hot)
        rewrite = await self._cold.begin(partition, plan)
        request = await self._request(partition, rewrite.job, plan, settings, drops_below)
        began_ms = self._clock.steady_ms()

        async def replace(new: RewrittenSegment) -> None:
            if self._shown_below(hot) < drops_below:
                raise _Abandoned  # the local log was cut, and may show values that these tombstones hid
            await rewrite.replace(new)

        try:
            async with aclosing(self._process.run(request, rewrite.fetch_segment)) as answers:
                reached, counted = await self._replace_segments(answers, replace, partition, plan, settings)
            await rewrite.save_clean_point(reached)
        finally:
            await asyncio.to_thread(rewrite.clear)
        self.figures.cleaned(_tier(True), counted, self._clock.steady_ms() - began_ms, settings.map_bytes)
        _log_cleaned(partition, reached, counted, is_remote=True)

    async def _replace_segments(
        self,
        answers: AsyncIterator[CleanerAnswer],
        replace: Callable[[RewrittenSegment], Awaitable[None]],
        partition: Partition,
        plan: CleaningPlan,
        settings: CleanerSettings,
    ) -> tuple[int, Cleaned]:
        """Replaces old segments by the rewritten ones. Returns the offset up to which the log is clean afterwards, and the
        counts."""
        hot, reached, counted = partition.log.hot, plan.dirty_start, Cleaned()
        async for answer in answers:
            self._check_goes_on(partition, hot, settings)
            if isinstance(answer, KeysRead):
                reached = answer.offset
            elif isinstance(answer, RewrittenSegment):
                await replace(answer)
            elif isinstance(answer, Cleaned):
                counted = answer
        return reached, counted

    def _check_goes_on(self, partition: Partition, hot: HotLog, settings: CleanerSettings) -> None:
        """Raises _Abandoned if the log may no longer be cleaned, or if the settings have changed. Otherwise the process would
        keep the settings of its request, for days if its rate is low. The next attempt has the new settings and begins at the
        clean point."""
        if _is_gone(partition, hot) or not self._may_clean(partition):
            raise _Abandoned
        if not settings.are_for_the_pass_of(self._policy.settings()):
            raise _Abandoned

    async def _request(
        self,
        partition: Partition,
        cleaning: CleaningJob,
        plan: CleaningPlan,
        settings: CleanerSettings,
        drops_below: int,
    ) -> CleaningRequest:
        producers = dict[int, LastRecord]()
        async for some in slices(list(partition.log.hot.end.producers.producers.items()), GLANCES_A_TURN):
            producers |= last_records(some, plan.end)
        return CleaningRequest(
            cleaning=cleaning,
            producers=producers,
            now_ms=self._policy.now().expiry_ms,
            delete_retention_ms=self._policy.topic(partition.partition.topic).delete_retention_ms,
            drops_below=drops_below,
            map_bytes=settings.map_bytes,
            map_load=settings.map_load,
            bytes_per_second=settings.bytes_per_second,
            key=self._rng.token(16),
        )

    def _hidden_below(self, partition: Partition) -> int:
        """The offset below which local tombstones and markers hide nothing in the bucket."""
        if not self._bucket_may_hold(partition):
            return _ALL
        return 0 if self._cold is None else self._cold.cleaned_to(partition)

    def _shown_below(self, hot: HotLog) -> int:
        """The offset below which the bucket's tombstones and markers hide nothing in the local log. Above it they may, because
        a reader of the local log continues in the bucket if the segments are evicted."""
        return max(hot.local_start_offset, cleaned_to(self._point(hot), hot.durable_segments(), hot.epoch_at))

    def _bucket_may_hold(self, partition: Partition) -> bool:
        """Whether the bucket may hold records of the partition, or hold some soon."""
        tiering, tier = self._tiering, partition.log.tier
        if tier is None and not tiering.is_tiered(partition):
            # A node that was started without a store knows no manifest, but its next start may have a store again.
            return os.path.exists(os.path.join(partition.log.hot.directory, SAVED_MANIFEST))
        has_asked = tiering.has_compared(partition) and partition not in tiering.extensions
        return not has_asked or (tier is not None and tier.segments > 0)

    async def _swap(self, partition: Partition, hot: HotLog, new: RewrittenSegment, drops_below: int) -> None:
        # By now the directory may belong to another topic, and must not be touched. A deletion from here on ends the swap.
        swap = None if _is_gone(partition, hot) else hot.swapping.begin(new)
        if swap is None:
            raise _Abandoned
        try:
            await asyncio.to_thread(swap.prepare)
            # Waits for an extension, because the tier process reads a segment by its name.
            await self._tiering.extensions.ended(partition)
            # By now another node may lead the partition, or the partition may wait for the store or no longer be compacted.
            if _is_gone(partition, hot) or not self._may_clean(partition):
                raise _Abandoned
            if self._hidden_below(partition) < drops_below:
                raise _Abandoned  # the bucket may have values by now that these tombstones hid
            if not self._finish_swap(partition, swap, new):
                raise _Abandoned
            await asyncio.to_thread(swap.commit)
        except _Abandoned:
            await asyncio.to_thread(swap.end)
            raise

    def _finish_swap(self, partition: Partition, swap: SegmentSwap, new: RewrittenSegment) -> bool:
        try:
            return partition.log.hot.swapping.finish(swap, new)
        except StorageError as error:
            partition.fail(error)  # some files already have their new names, and only a restart can finish or undo that
            raise

    async def _save_clean_point(self, partition: Partition, hot: HotLog, reached: int) -> None:
        if _is_gone(partition, hot):
            raise _Abandoned
        point = self._points[hot] = clean_point(hot.durable_segments(), reached, hot.epoch_at)
        await asyncio.to_thread(write_clean_point, self._files, hot.directory, point)


#: Above every offset.
_ALL = (1 << 63) - 1


def _tier(is_remote: bool) -> str:
    return "bucket" if is_remote else "local"


def _is_gone(partition: Partition, hot: HotLog) -> bool:
    return partition.deleted or partition.log.hot is not hot


def _dirtier(found: _Dirty | None, other: _Dirty) -> _Dirty | None:
    """Returns the log to clean first: `other` if it is due and dirtier than `found`, else `found`."""
    is_first = other.plan.is_due and (found is None or _rank(other.plan) > _rank(found.plan))
    return other if is_first else found


def _log_cleaned(partition: Partition, reached: int, counted: Cleaned, *, is_remote: bool) -> None:
    events.info(
        log,
        "log.cleaned",
        partition=partition.partition,
        tier=_tier(is_remote),
        offset=reached,
        records=counted.records_kept,
        of_records=counted.records_read,
        bytes=counted.bytes_written,
        of_bytes=counted.bytes_read,
    )


def _rank(plan: CleaningPlan) -> tuple[bool, float]:
    """Ranks overdue logs above others, and then by the dirty share, as Kafka does."""
    return plan.is_overdue, plan.dirty_ratio


def _first_timestamp(segment: SegmentInfo) -> int:
    """The largest timestamp of the segment's first batch, in ms. Raises OSError if it cannot be read."""
    with open(segment.path, "rb") as file:
        return read_header(file.read(HEADER_BYTES)).max_timestamp
