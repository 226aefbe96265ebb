"""The partitions that this node holds: opened from the metadata image, checkpointed, closed.

The log start checkpoint is written before anything below the log start is removed. The other two checkpoints shorten the
recovery at the next start, and reveal lost records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from service.broker.partition.checkpointing import NAMES, OffsetCheckpoints, Offsets
from service.broker.partition.counts import PartitionCounts
from service.broker.partition.directory_identities import DirectoryIdentities
from service.broker.partition.known_elsewhere import least_log_start, open_identified
from service.broker.partition.log_start_raises import LogStartRaises
from service.broker.partition.partition import Notify, Partition
from service.broker.partition.set_aside import SetAsideLogs
from service.broker.partition.state import PartitionState
from service.lifecycle.lease import Lease
from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest.model import Ids, Manifest
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.read.reader import ColdReader
from storage_tiers.errors import NotLeader, StorageError, TierUnavailable, UnknownTopicOrPartition
from storage_tiers.files import Files
from storage_tiers.hot.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from storage_tiers.hot.data_dir import DataDirectory, PartitionDirectory, remove_tree, rename_for_removal
from storage_tiers.hot.layout import DELETE_SUFFIX, LOG, STRAY_SUFFIX
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.settings import LogSettings
from storage_tiers.tiered_log import TieredLog
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)

FindManifest = Callable[[Partition], Awaitable[Manifest]]
#: Stands for the recovery point of a partition that has no log on disk and may have had one, and for the high watermark of a
#: partition whose checkpoint was unreadable.
UNKNOWN_POINT = -1
#: The number of logs that are flushed and closed concurrently when the node stops.
CLOSING_THREADS = 8


@dataclass(frozen=True, slots=True)
class ColdSource:
    """Access to the bucket: `hydrator` fetches its data, `current` returns a partition's current manifest, `newest` reads the
    store's own manifest and makes it current."""

    hydrator: Hydrator
    current: FindManifest
    newest: FindManifest


@dataclass(frozen=True, slots=True)
class LogStorage:
    """The settings with which every log is opened and written. Nothing is appended once the `lease` is over.
    `freeing_files` write the checkpoints, which must be durable before anything may be removed."""

    data: DataDirectory
    files: Files
    freeing_files: Files
    clock: Clock
    rng: Rng
    lease: Lease


@dataclass(frozen=True, slots=True)
class Wakers:
    """The workers that a partition wakes: `flush` when its log needs a flush, `offload` when it has closed a segment."""

    flush: Notify
    offload: Notify


class PastCounts:
    """Totals of removed logs, so that the totals of the node never fall."""

    __slots__ = ("appended_bytes", "appended_records", "asked", "evicted_bytes", "read_bytes")

    def __init__(self) -> None:
        self.appended_records = self.appended_bytes = self.evicted_bytes = self.read_bytes = 0
        self.asked = PartitionCounts()

    def add(self, partition: Partition) -> None:
        log = partition.log
        self.asked.add(partition.counts)
        self.appended_records += log.hot.appended_records
        self.appended_bytes += log.hot.appended_bytes
        self.evicted_bytes += log.hot.evicted_bytes
        self.read_bytes += log.read_bytes


class Partitions:
    """The open partitions, and the errors of those that could not be opened. `get` raises StorageError for the latter, and
    NotLeader or UnknownTopicOrPartition for all others."""

    def __init__(self, storage: LogStorage, wakers: Wakers, *, cluster_id: str, cold: ColdSource | None) -> None:
        """`cold` is None without a store."""
        self._storage = storage
        self._wakers = wakers
        self._cluster_id = cluster_id
        self._cold = cold
        self._set_aside = SetAsideLogs(storage.data, storage.files)
        if cold is not None:
            self._load, self._reload = partial(self._manifest, cold.current), partial(self._manifest, cold.newest)
        self._open: dict[TopicPartition, Partition] = {}
        self._scheduler = TurnScheduler()
        self._held_back: dict[TopicPartition, StorageError] = {}
        self._keeps: set[TopicPartition] = set()
        #: Writes under way that correct an impossible log start in the checkpoint.
        self._corrections: set[asyncio.Future[None]] = set()
        #: Partitions of live topics without a replica here.
        self._elsewhere: set[TopicPartition] = set()
        directory = storage.data.path
        self._checkpoints = OffsetCheckpoints(directory, storage.freeing_files)
        self._log_start_raises = LogStartRaises(self._checkpoints, self._log_starts)
        self.directories = DirectoryIdentities(directory, storage.files)
        #: Counts of closed partitions.
        self.past = PastCounts()

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def get(self, partition: TopicPartition) -> Partition:
        """Returns the open partition. Raises the error of its failed opening, NotLeader if only other nodes hold the partition,
        or else UnknownTopicOrPartition."""
        found = self._open.get(partition)
        if found is None:
            if (why := self._held_back.get(partition)) is not None:
                raise why.with_traceback(None)
            if partition in self._elsewhere:
                raise NotLeader(f"this node is not a replica of {partition}; refresh metadata")
            raise UnknownTopicOrPartition(f"this node holds no partition {partition}")
        return found

    # --- failed openings ----------------------------------------------------------------------------------------------
    def hold_back(self, partition: TopicPartition, why: StorageError, *, known: bool) -> None:
        """Records that a partition could not be opened. Until `release`, callers get the error. The partition's checkpoint
        entries stay if they are `known` to be its own, and not those of an earlier partition of that name."""
        self._held_back[partition] = why
        if known:
            self._keeps.add(partition)

    def release(self, partition: TopicPartition) -> None:
        self._held_back.pop(partition, None)
        self._keeps.discard(partition)

    def note_elsewhere(self, partition: TopicPartition) -> None:
        """Records that only other nodes hold the partition. Until `forget_elsewhere`, callers are sent there."""
        self._elsewhere.add(partition)

    def is_elsewhere(self, partition: TopicPartition) -> bool:
        return partition in self._elsewhere

    def forget_elsewhere(self, partition: TopicPartition) -> None:
        self._elsewhere.discard(partition)

    def why_held_back(self, partition: TopicPartition) -> StorageError | None:
        return self._held_back.get(partition)

    def holds_back(self, topics: Collection[str]) -> bool:
        """Whether a partition of one of these topics could not be opened."""
        return any(each.topic in topics for each in self._held_back)

    def remove_held_back(self, partition: TopicPartition, topic_id: TopicId, *, was_deleted: bool) -> None:
        """Removes the directory of an unopened partition whose topic is gone. Deletes it if the topic `was_deleted`, else sets
        it aside. Raises StorageError if the disk refuses."""
        storage, path = self._storage, self._directory(partition)
        if not os.path.isdir(path):
            return
        suffix = DELETE_SUFFIX if was_deleted else STRAY_SUFFIX
        renamed = rename_for_removal(storage.files, storage.rng, path, partition, suffix)
        if was_deleted:
            self._remove(partition, renamed)
            return
        self.note_set_aside(topic_id, partition, renamed)
        events.warning(log, "partition.stray", partition=partition, path=path, renamed_to=renamed)

    def _kept(self, known: Offsets) -> dict[TopicPartition, int]:
        return {p: known[p] for p in self._keeps if p in known}

    def find(self, partition: TopicPartition) -> Partition | None:
        return self._open.get(partition)

    def of_topic(self, topic: str) -> list[Partition]:
        """The topic's partitions on this node: none, if all are on other brokers."""
        return [p for p in self._open.values() if p.partition.topic == topic]

    def open(
        self, partition: TopicPartition, topic_id: TopicId, settings: LogSettings, leader_epoch: int, *, clean: bool
    ) -> Partition:
        """Opens the partition's directory and recovers it after an unclean stop. Blocking."""
        return self.add(self.opener(partition, topic_id, settings, clean=clean)(), leader_epoch, started=True)

    async def creator(
        self, partition: TopicPartition, topic_id: TopicId, settings: LogSettings, *, is_empty: bool = False
    ) -> Callable[[], HotLog]:
        """Returns a blocking function that creates the log of a new partition. It may run in a thread while no other call
        creates or removes this partition. Raises StorageError if checkpoint entries of an earlier partition cannot be
        removed."""
        await self._forget_earlier(partition)
        return self.opener(partition, topic_id, settings, clean=True, is_empty=is_empty)

    def opener(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        settings: LogSettings,
        *,
        clean: bool,
        is_empty: bool = False,
    ) -> Callable[[], HotLog]:
        """Returns a blocking function that opens the partition's log; it may run in a thread. It first takes up a log that was
        set aside. If the log must begin empty (`is_empty`), it sets one aside that is in its place."""
        storage = self._storage
        ground = LogGround(self._directory(partition), partition, topic_id, storage.files, storage.clock, storage.rng)
        open_log = partial(
            HotLog.open,
            ground,
            settings,
            recovery_point=max(0, self._checkpoints.known(RECOVERY_POINTS).get(partition, 0)),
            log_start_offset=self._checkpoints.known(LOG_STARTS).get(partition, 0),
            clean=clean and not self._set_aside.holds(topic_id, partition.partition),
        )
        reader = self._cold_reader(partition, topic_id)
        ids = None if reader is None else reader.ids

        def open_it() -> HotLog:
            if not is_empty:
                self._set_aside.take_up(partition, topic_id, ground.directory)
            elif os.path.isdir(ground.directory):  # left by a start that set nothing aside
                aside = storage.data.mark_stray(PartitionDirectory(partition, topic_id, ground.directory))
                events.warning(log, "partition.stray", partition=partition, path=ground.directory, renamed_to=aside)
            return open_identified(open_log, ground, ids)

        return open_it

    def _directory(self, partition: TopicPartition) -> str:
        return os.path.join(self._storage.data.path, str(partition))

    def _cold_reader(self, partition: TopicPartition, topic_id: TopicId) -> ColdReader | None:
        if self._cold is None:
            return None
        ids = Ids(self._cluster_id, partition.topic, topic_id, partition.partition)
        return ColdReader(ids, self._cold.hydrator, load=self._load, reload=self._reload)

    async def _manifest(self, find: FindManifest, ids: Ids) -> Manifest:
        led = self.get(ids.topic_partition)
        if led.topic_id != ids.topic_id:
            raise TierUnavailable(f"{ids}: the topic was recreated; retry")
        return await find(led)

    def add(self, hot: HotLog, leader_epoch: int, *, started: bool = False) -> Partition:
        """Adds the partition of an opened log to this node's partitions. `started` is True if an earlier run may have opened
        it."""
        state = PartitionState(
            leader_epoch=leader_epoch,
            log_end=hot.end_offset,
            high_watermark=self._checkpoints.known(HIGH_WATERMARKS).get(hot.partition, 0),
            log_start=hot.log_start_offset,
        )
        opened = Partition(
            TieredLog(hot, self._cold_reader(hot.partition, hot.topic_id)),
            state,
            cluster_id=self._cluster_id,
            clock=self._storage.clock,
            lease=self._storage.lease,
            on_flush_needed=self._wakers.flush,
            on_roll=self._wakers.offload,
        )
        self.release(hot.partition)
        self._elsewhere.discard(hot.partition)
        self._open[hot.partition] = opened
        self.directories.note(opened, started=started)
        known = self._checkpoints.known(LOG_STARTS).get(hot.partition, 0)
        is_possible = known <= hot.end_offset
        if LOG_STARTS in self._checkpoints.damaged or not is_possible:
            hot.raise_log_start(least_log_start(opened))
        if not is_possible:
            self._correct_log_start(hot, known)
        return opened

    def _correct_log_start(self, hot: HotLog, known: int) -> None:
        """Corrects the checkpoint at once, not in the next round. After a crash in between, the next start would mistake the
        impossible offset for the log start, and hide the records below it."""
        start, end = hot.log_start_offset, hot.end_offset
        events.error(log, "log.start_impossible", partition=hot.partition, checkpoint=known, log_start=start, end=end)

        async def corrected(offsets: Offsets) -> Offsets:
            return {**offsets, hot.partition: start}

        correction = asyncio.ensure_future(self._checkpoints.write(LOG_STARTS, corrected))
        self._corrections.add(correction)
        correction.add_done_callback(self._corrections.discard)

    async def _forget_earlier(self, partition: TopicPartition) -> None:
        """Removes the checkpoint entries of an earlier topic of this name. The same write removes all entries without a
        partition, so one write suffices for a topic of many partitions."""
        for name in NAMES:
            # A write under way may have an entry of the earlier topic.
            if self._checkpoints.writing or partition in self._checkpoints.known(name):
                await self._checkpoints.write(name, self._of_open)

    async def _of_open(self, known: Offsets) -> Offsets:
        return {p: offset for p, offset in known.items() if p in self._open or p in self._keeps}

    def note_lost(
        self,
        partitions: Iterable[TopicPartition],
        *,
        added: Collection[TopicPartition],
        moved: Collection[TopicPartition],
    ) -> None:
        """Notes the partitions without segments on disk, which may have lost records. A partition whose recovery point is above
        0 certainly has. The note lasts until the partition is compared with the bucket. Called at start, before any partition
        is opened. Blocking.

        Two kinds of partitions have lost nothing, because their logs have not begun here: the `added` ones, which are moving to
        this broker, and the `moved` ones without a recovery point, which came from another broker."""
        points = self._checkpoints.known(RECOVERY_POINTS)
        begun = (p for p in partitions if p not in added and (p not in moved or points.get(p, 0)))
        lost = {p for p in begun if not _holds_segments(self._directory(p))}
        for name in NAMES:
            known = self._checkpoints.known(name)
            kept = {p: offset for p, offset in known.items() if p not in lost and p not in added}
            if name == RECOVERY_POINTS:
                kept |= {p: known.get(p, 0) or UNKNOWN_POINT for p in lost}
            self._checkpoints.write_now(name, kept)

    @property
    def damaged_checkpoints(self) -> Collection[str]:
        """The names of the checkpoints that were damaged at this start."""
        return self._checkpoints.damaged

    def note_unknown(self, partitions: Iterable[TopicPartition]) -> None:
        """If the checkpoint of high watermarks is damaged, notes that each of these partitions may have lost records that were
        not flushed. The note lasts until the partition leads. Called at start, before any is opened. Blocking."""
        if HIGH_WATERMARKS not in self._checkpoints.damaged:
            return
        unknown = {p: UNKNOWN_POINT for p in partitions if _holds_segments(self._directory(p))}
        events.error(log, "losses.unknown", path=self._checkpoints.path(HIGH_WATERMARKS), partitions=len(unknown))
        self._checkpoints.write_now(HIGH_WATERMARKS, unknown)

    def ends_before_flushed(self, partition: Partition) -> bool:
        """Whether the log has lost records that an earlier start had flushed (a damaged disk, or an older copy of the
        directory), or may have lost them, because the log is missing and its end is not known."""
        return not 0 <= self.flushed_before(partition) <= partition.log.end_offset

    def ends_before_committed(self, partition: Partition) -> bool:
        """Whether the log has lost records that were below the high watermark at the last checkpoint, flushed or not.
        Power may have failed, or a cause of `ends_before_flushed` applies. Also true if the checkpoint was damaged,
        because the log may then have lost records."""
        before = self._checkpoints.known(HIGH_WATERMARKS).get(partition.partition, 0)
        return not 0 <= before <= partition.log.end_offset

    def flushed_before(self, partition: Partition) -> int:
        """The offset up to which an earlier start had flushed, according to the last checkpoint; or UNKNOWN_POINT."""
        return self._checkpoints.known(RECOVERY_POINTS).get(partition.partition, 0)

    def close_deleted(self, partition: Partition) -> HotLog:
        """Forgets a deleted partition; its waiters get an error. `discard` removes its log."""
        del self._open[partition.partition]
        partition.delete()
        self.past.add(partition)
        return partition.log.hot

    def close_elsewhere(self, partition: Partition) -> HotLog:
        """Forgets a resigned partition that this node no longer replicates. Its log then goes to `discard` or `set_aside`."""
        self.note_elsewhere(partition.partition)
        return self.close_deleted(partition)

    def set_aside(self, hot: HotLog, *, for_later: bool) -> None:
        """Renames the directory of an unused log to `-stray`, because its records may exist nowhere else. With `for_later` the
        partition takes the log up again when the metadata has its topic. Raises StorageError if the disk refuses."""
        aside = hot.rename_away(STRAY_SUFFIX)
        if for_later:
            self.note_set_aside(hot.topic_id, hot.partition, aside)
        events.warning(log, "partition.stray", partition=hot.partition, path=hot.directory, renamed_to=aside)

    def take_up_set_aside(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """Called at start. Brings the partition's log back if it was set aside. If the disk refuses, the partition's opening
        gets the error. Blocking."""
        with contextlib.suppress(StorageError):
            self._set_aside.take_up(partition, topic_id, self._directory(partition))

    def note_set_aside(self, topic_id: TopicId, partition: TopicPartition, path: str) -> None:
        """Records that the partition's log with this topic id was set aside at `path`."""
        self._set_aside.note(topic_id, partition.partition, path)

    def discard(self, hot: HotLog) -> None:
        """Removes the directory of an unused log."""
        self._remove(hot.partition, hot.rename_away(DELETE_SUFFIX))

    def _remove(self, partition: TopicPartition, doomed: str) -> None:
        """Removes a directory in a thread, because freeing large files blocks. After a stop the next start removes the rest."""

        def done(removing: asyncio.Future[None]) -> None:
            if not removing.cancelled() and (error := removing.exception()) is not None:
                events.error(log, "partition.left_behind", partition=partition, error=error)

        removing = asyncio.get_running_loop().run_in_executor(None, remove_tree, self._storage.files, doomed)
        removing.add_done_callback(done)

    async def raise_log_starts(self, wanted: Mapping[Partition, int]) -> None:
        """Hides the records below these offsets, durably before any of them is removed.

        Raises StorageError if the disk refuses; then nothing is hidden."""
        await self._log_start_raises.add(wanted)

    async def _log_starts(self, known: Offsets, rising: Mapping[Partition, int]) -> Offsets:
        """Returns the log starts to write. A log start is never below its value on disk, which may not have taken effect
        yet."""

        def start(opened: Partition) -> int | None:
            known_start = known.get(opened.partition, 0)
            return max(opened.log.log_start_offset, known_start, rising.get(opened, 0)) or None

        return await self._gathered(known, start)

    async def _gathered(self, known: Offsets, offset_of: Callable[[Partition], int | None]) -> Offsets:
        """The offsets of all open partitions that have one, and the kept entries of partitions that could not be opened. Works
        in slices of the event loop's time, because a node may have tens of thousands of partitions."""
        found, turn = self._kept(known), self._scheduler.turn()
        try:
            for partition, opened in tuple(self._open.items()):
                offset = None if opened.deleted else offset_of(opened)
                if offset is not None:
                    found[partition] = offset
                if turn.is_over:
                    await turn.rest()
        finally:
            turn.leave()
        return found

    async def checkpoint(self) -> None:
        """Writes the three checkpoints and the directories' identities, if they changed. A recovering partition keeps its
        recovery point and its high watermark even if its log ends below them. So a later start, too, waits for the bucket and
        lowers committed offsets. The loss itself is noted once the bucket has answered."""
        write, gathered = self._checkpoints.write, self._gathered
        await write(RECOVERY_POINTS, lambda known: gathered(known, lambda each: _recovery_point(each, known)))
        await write(HIGH_WATERMARKS, lambda known: gathered(known, lambda each: _high_watermark(each, known)))
        await write(LOG_STARTS, lambda known: self._log_starts(known, {}))
        await self.directories.save(tuple(self._open.values()), self._keeps, self._scheduler.turn())

    async def close(self) -> None:
        """Flushes and closes every log, then checkpoints. Raises StorageError if one failed, after closing all others."""
        run = asyncio.get_running_loop().run_in_executor
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="close") as threads:
            closing = [run(threads, partial(opened.log.hot.close, clean=True)) for opened in self._open.values()]
            ended = await asyncio.gather(*closing, return_exceptions=True)
        try:
            await self.checkpoint()
        finally:
            await self._checkpoints.close()
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure


def _recovery_point(partition: Partition, known: Offsets) -> int:
    return _noted(partition, partition.log.hot.recovery_point, known)


def _high_watermark(partition: Partition, known: Offsets) -> int:
    return _noted(partition, partition.state.high_watermark, known)


def _noted(partition: Partition, reached: int, known: Offsets) -> int:
    before = known.get(partition.partition, 0)
    if before == UNKNOWN_POINT and (partition.is_recovering or not partition.leads):
        return before
    return max(reached, before) if partition.is_recovering else reached


def _holds_segments(directory: str) -> bool:
    try:
        return any(name.endswith(LOG) for name in os.listdir(directory))
    except FileNotFoundError:
        return False
