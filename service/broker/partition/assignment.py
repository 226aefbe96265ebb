"""Opens, closes and reconfigures this node's partitions, and makes them lead or follow, as the metadata image demands.

Each image is compared with the partitions that this node leads. Listeners learn of gained and lost partitions, with the
leader epoch. A loss is reported after the partition has resigned. A gain is reported once the partition leads; it may still
wait for the store before it serves clients. Every loss of an image is reported before its first gain. A second gain without a
loss in between means a later leader epoch.

Threads create new partitions, a few at a time, in the order assigned. Each costs a few fsyncs, which must not block the event
loop. Invariants: at most one log per name is being opened, and only after the directory of an earlier log of that name has
been renamed. A partition that is deleted while its log is being opened is removed again.

Changed configs are applied in slices of the event loop's time, because they may concern thousands of partitions. New
partitions always have the newest configs.

A disk failure of one partition does not delay the others. It is logged, and `retry` opens the partition later, because a full
disk may get space again. The files of a topic that the metadata lacks, although it was not deleted, are set aside. So are those
of a partition that this node no longer replicates, unless the bucket has its whole log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol

from grpc_api.contract.topics import Resource, ResourceKind
from service.broker.partition.leading import note_move
from service.broker.partition.older_epochs import is_older, newest_epoch, refuses
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Phase
from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes, PartitionImage, TopicImage
from storage_tiers import events
from storage_tiers.errors import LogError, NotLeader, StorageError
from storage_tiers.hot.checkpoints import RECOVERY_POINTS
from storage_tiers.hot.data_dir import DataDirectory, PartitionDirectory
from storage_tiers.hot.log import HotLog
from storage_tiers.turns import Turn, TurnScheduler
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)

#: Directories of closed partitions that are renamed in one turn of the event loop.
DISCARDS_A_TURN = 32
#: New partitions opened concurrently.
OPENING_THREADS = 8
#: Seconds for which the creation of a topic waits for its partitions; clients retry for partitions that take longer.
OPENING_PATIENCE_S = 20.0


class LeadershipListener(Protocol):
    """Neither method may block. Their errors are logged and have no other effect."""

    def gained(self, partition: Partition, leader_epoch: int) -> None:
        """This node leads the partition under that epoch."""

    def lost(self, partition: Partition, leader_epoch: int) -> None:
        """This node led the partition under that epoch, and no longer does. The partition may be deleted."""


class Assignment:
    """`on_open` is called with a partition whose log was opened, and whether this node leads it. `on_lead` is called with a
    partition that this node leads after another node led it. Both end the partition's opening phase and decide whether it may
    lead at once. `on_close` is called before a partition is closed. `has_copy` tells whether the bucket has a partition's whole
    log."""

    def __init__(
        self,
        partitions: Partitions,
        configs: Resolver,
        *,
        node_id: int,
        on_open: Callable[[Partition, bool], None],
        on_lead: Callable[[Partition], None],
        on_close: Callable[[Partition], None],
        has_copy: Callable[[Partition], bool],
    ) -> None:
        self._partitions = partitions
        self._configs = configs
        self._node_id = node_id
        self._on_open = on_open
        self._on_lead = on_lead
        self._on_close = on_close
        self._has_copy = has_copy
        self._listeners: list[LeadershipListener] = []
        self.outrun: dict[Partition, None] = {}  # opened with a higher leader epoch in the log than in the metadata
        #: The leader epochs that listeners have received, by partition that this node leads.
        self._led: dict[Partition, int] = {}
        self._seen = MetadataImage()
        self._wanted: dict[tuple[TopicId, int], TopicPartition] = {}  # in the order assigned
        self._unopened: dict[tuple[TopicId, int], TopicPartition] = {}
        #: Partitions that threads are opening; nothing else touches their directories.
        self._being_opened: set[tuple[TopicId, int]] = set()
        #: Logs that are no longer used and whose directories still exist, each with the function that discards the directory or
        #: sets it aside.
        self._leaving: deque[tuple[HotLog, Callable[[HotLog], None]]] = deque()
        self._opening: asyncio.Task[None] | None = None
        #: For partitions that failed to open at the start and may hold records: whether the previous stop was clean.
        self._recovering: dict[tuple[TopicId, int], bool] = {}
        self._troubles = events.Troubles()
        self._threads = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="open")
        #: Partitions whose configs may have changed, and the task that applies them.
        self._unconfigured: dict[Partition, None] = {}
        self._configuring: asyncio.Task[None] | None = None
        self._scheduler = TurnScheduler()

    def subscribe(self, listener: LeadershipListener) -> None:
        """Adds a listener. A listener added before `recover` learns of every gain."""
        self._listeners.append(listener)

    def recover(self, image: MetadataImage, data: DataDirectory, *, clean: bool, may_be_older: bool = False) -> None:
        """Runs at start. Removes the directories of deleted topics, sets aside those of topics that the image does not have,
        and opens all partitions. Blocking. If the image `may_be_older` than the directory, nothing is set aside, because a
        take-over finds directories by name.

        A partition that cannot be opened is held back without affecting others. Its callers get the error, its files and
        checkpoint entries stay, and `retry` opens it as this start would have."""
        for directory in data.partitions():
            topic = image.topic(directory.partition.topic)
            if directory.topic_id is None:
                continue
            placed = image.partition(*directory.partition)
            if placed is not None and topic is not None and topic.topic_id == directory.topic_id:
                # If the partition came back, a log that was handed over just before the stop would pass for a current one.
                if not may_be_older and self._node_id not in placed.replicas:
                    _set_aside(directory, data)
                continue
            if directory.topic_id in image.deleting:
                data.mark_deleted(directory)
            elif not may_be_older:
                self._partitions.note_set_aside(directory.topic_id, directory.partition, _set_aside(directory, data))
        self._seen = image
        held: list[tuple[TopicImage, PartitionImage]] = []
        for topic in image.topics.values():
            for placed in topic.partitions:
                if self._node_id in placed.replicas:
                    held.append((topic, placed))
                else:
                    self._partitions.note_elsewhere(TopicPartition(topic.name, placed.index))
        keys = [TopicPartition(topic.name, placed.index) for topic, placed in held]
        for (topic, _), key in zip(held, keys, strict=True):
            self._partitions.take_up_set_aside(key, topic.topic_id)
        replicas = [(key, placed) for key, (_, placed) in zip(keys, held, strict=True)]
        added = {key for key, placed in replicas if self._node_id in placed.adding}
        self._partitions.note_lost(keys, added=added, moved={key for key, placed in replicas if placed.moved_end > 0})
        if not clean or RECOVERY_POINTS in self._partitions.damaged_checkpoints:  # after a clean stop all was flushed
            self._partitions.note_unknown(keys)
        for topic, placed in held:
            key, topic_id = TopicPartition(topic.name, placed.index), TopicId(topic.topic_id)
            settings = self._configs.log_settings(image, topic.name)
            try:
                self._take_up(self._partitions.open(key, topic_id, settings, placed.leader_epoch, clean=clean))
            except (LogError, OSError) as error:
                self._recovering[topic_id, placed.index] = clean
                self._hold_back(topic_id, key, error)
        data.remove_deleted()

    def apply(self, image: MetadataImage, changes: Changes) -> None:
        """Called after every change of the image; examines only the changes."""
        before, self._seen = self._seen, image
        self._apply_topics(before, image, changes.topics)
        self._apply_configs(changes.configs)

    @property
    def unopened(self) -> int:
        """The number of partitions that could not be opened and are retried."""
        return len(self._unopened)

    @property
    def has_opened_all(self) -> bool:
        """Whether no partition is being opened or waits for a retry."""
        return not (self._unopened or self._wanted or self._opening is not None)

    @property
    def unrecovered(self) -> bool:
        """Whether a log remains unopened after an unclean stop."""
        return not all(self._recovering.values())

    def unopened_names(self) -> list[str]:
        return [str(key) for key in self._unopened.values()]

    async def settled(self) -> None:
        """Returns once all partitions assigned so far are open or have failed to open, or after OPENING_PATIENCE_S."""
        if self._opening is not None:
            await asyncio.wait({self._opening}, timeout=OPENING_PATIENCE_S)

    async def retry(self) -> None:
        """Opens the partitions that could not be opened before."""
        self._wanted.update(self._unopened)
        self._unopened.clear()
        self._start_opening()
        await self.settled()

    async def close(self) -> None:
        """Finishes work in progress and starts no more."""
        self._wanted.clear()
        under_way = {each for each in (self._opening, self._configuring) if each is not None}
        if under_way:
            await asyncio.wait(under_way)
        self._threads.shutdown()

    def _apply_topics(self, before: MetadataImage, image: MetadataImage, changed: Sequence[TopicId]) -> None:
        for topic_id in changed:
            known, topic = before.topics.get(topic_id), image.topics.get(topic_id)
            if known is not None:
                self._close_from(known, 0 if topic is None else len(topic.partitions))
        live = [topic for topic_id in changed if (topic := image.topics.get(topic_id)) is not None]
        for topic in live:
            self._lose(topic)
        for topic in live:
            self._gain(topic)
        self._start_opening()

    def _lose(self, topic: TopicImage) -> None:
        """Closes the partitions that this node no longer replicates, and follows those that another node leads."""
        for placed in topic.partitions:
            key = TopicPartition(topic.name, placed.index)
            known = self._partitions.find(key)
            if self._node_id not in placed.replicas:
                self._send_elsewhere(topic, key, known)
            elif known is not None and known.phase is not Phase.OPENING:
                self._follow(known, placed)

    def _follow(self, partition: Partition, placed: PartitionImage) -> None:
        """Makes the partition follow another node that leads it. If the leader epoch has fallen, this node stops leading."""
        is_news = partition.leads or partition.state.leader_epoch != placed.leader_epoch
        if refuses(partition, placed, self._troubles):
            self._has_lost(partition)
        elif is_news and placed.leader != self._node_id:
            partition.follow(placed.leader_epoch, placed.leader)
            self._has_lost(partition)

    def _gain(self, topic: TopicImage) -> None:
        """Leads the partitions whose leader is this node, and queues new partitions for opening."""
        # Resolved once for the topic, which may have thousands of partitions.
        min_in_sync = self._configs.log_settings(self._seen, topic.name).min_insync_replicas
        for placed in topic.partitions:
            if self._node_id not in placed.replicas:
                continue
            key = TopicPartition(topic.name, placed.index)
            known = self._partitions.find(key)
            if known is None:
                self._wanted[topic.topic_id, placed.index] = key
            elif known.phase is not Phase.OPENING and placed.leader == self._node_id and not is_older(known, placed):
                self._lead(known, placed, min_in_sync)

    def _lead(self, partition: Partition, placed: PartitionImage, min_in_sync: int) -> None:
        partition.set_min_in_sync(min_in_sync, len(placed.own_replicas))
        note_move(partition, placed.moved_end)
        if partition.leads and partition.state.leader_epoch == placed.leader_epoch:
            partition.set_in_sync(self._followers(placed))
            return
        if partition.leads and placed.moved_end > partition.log.hot.end_offset:
            # The partition moved away and came back, and this node learned of both moves at once.
            partition.resign(NotLeader(f"{partition.partition}: another broker has led it meanwhile; refresh metadata"))
            self._has_lost(partition)
        followed = not partition.leads
        partition.lead(placed.leader_epoch, self._followers(placed))
        if followed:
            self._on_lead(partition)
        self._has_gained(partition)

    def _followers(self, placed: PartitionImage) -> list[int]:
        return [node_id for node_id in placed.isr if node_id != self._node_id]

    def _has_gained(self, partition: Partition) -> None:
        epoch = self._led[partition] = partition.state.leader_epoch
        for listener in self._listeners:
            try:
                listener.gained(partition, epoch)
            except Exception as defect:  # noqa: BLE001 - the other listeners must still be called
                _say_defect(partition, "gaining leadership", defect)

    def _has_lost(self, partition: Partition) -> None:
        if (epoch := self._led.pop(partition, None)) is None:
            return
        for listener in self._listeners:
            try:
                listener.lost(partition, epoch)
            except Exception as defect:  # noqa: BLE001 - the other listeners must still be called
                _say_defect(partition, "losing leadership", defect)

    def _apply_configs(self, changed: Sequence[Resource]) -> None:
        """Reconfigures the partitions of changed topics, or all partitions after a change of a broker's configs."""
        if any(resource.kind is ResourceKind.BROKER for resource in changed):
            self._unconfigured.update(dict.fromkeys(self._partitions))
        else:
            topics = (self._seen.topic(each.name) for each in changed if each.kind is ResourceKind.TOPIC)
            keys = (TopicPartition(topic.name, p.index) for topic in topics if topic for p in topic.partitions)
            concerned = (known for key in keys if (known := self._partitions.find(key)) is not None)
            self._unconfigured.update(dict.fromkeys(concerned))
        if self._unconfigured and self._configuring is None:
            turn = self._scheduler.turn()
            self._configure_some(turn)
            if self._unconfigured:
                rest = self._configure_rest(turn)
                self._configuring = asyncio.get_running_loop().create_task(rest, name="new configs")

    async def _configure_rest(self, turn: Turn) -> None:
        try:
            while self._unconfigured:
                await turn.rest()
                self._configure_some(turn)
        finally:
            turn.leave()
            self._configuring = None

    def _configure_some(self, turn: Turn) -> None:
        """Applies the newest image's configs until the turn is over."""
        while self._unconfigured:
            partition, _ = self._unconfigured.popitem()
            try:
                if not partition.deleted:
                    self._configure(partition)
            except (LogError, OSError) as error:
                events.error(log, "partition.keeps_configs", partition=partition.partition, error=error)
            except Exception as defect:  # noqa: BLE001 - the other partitions must still get their configs
                _say_defect(partition, "changing configs", defect)
            if turn.is_over:
                return

    # --- opening ------------------------------------------------------------------------------------------------------
    def _start_opening(self) -> None:
        if (self._wanted or self._leaving) and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_wanted(), name="open partitions")

    async def _open_wanted(self) -> None:
        try:
            while self._wanted or self._leaving:
                # Discards come first: a new topic may have the name of a deleted one.
                await self._discard_leaving()
                some = dict(islice(self._wanted.items(), OPENING_THREADS))
                for each in some:
                    del self._wanted[each]
                self._being_opened = set(some)
                await asyncio.gather(*(self._try_to_open(topic_id, key) for (topic_id, _), key in some.items()))
                self._being_opened.clear()
        finally:
            self._opening = None

    async def _try_to_open(self, topic_id: TopicId, key: TopicPartition) -> None:
        failure: Exception | None = None
        try:
            await self._open(topic_id, key)
        except Exception as error:  # noqa: BLE001 - one partition's failure must not delay others
            failure = error
        if self._placed(topic_id, key) is None:  # deleted meanwhile, or the metadata is older now
            self._remove_held_back(topic_id, key)
        elif failure is not None:
            self._hold_back(topic_id, key, failure)
        else:
            self._forget_trouble(topic_id, key)

    def _hold_back(self, topic_id: TopicId, key: TopicPartition, error: Exception) -> None:
        identity, defect = (topic_id, key.partition), None if isinstance(error, LogError | OSError) else error
        if self._troubles.begins(identity, error):
            events.error(
                log, "partition.unopened", topic=key.topic, partition=key.partition, error=error, defect=defect
            )
        self._unopened[identity] = key
        why = StorageError(f"{key} could not be opened: {error}")
        self._partitions.hold_back(key, why, known=identity in self._recovering)

    async def _open(self, topic_id: TopicId, key: TopicPartition) -> None:
        placed, number = self._placed(topic_id, key), key.partition
        if placed is None or self._node_id not in placed.replicas:
            return
        if (known := self._partitions.find(key)) is not None:
            if known.phase is Phase.OPENING:  # an earlier attempt opened its log and failed after that
                self._take_up(known)
            return
        settings = self._configs.log_settings(self._seen, key.topic)
        before = self._recovering.get((topic_id, number))
        if before is None:
            # A replica that a move adds begins with an empty log. A log of an earlier replica that was set aside is not used.
            is_added = self._node_id in placed.adding
            create = await self._partitions.creator(key, TopicId(topic_id), settings, is_empty=is_added)
        else:
            create = self._partitions.opener(key, TopicId(topic_id), settings, clean=before)
        hot = await asyncio.get_running_loop().run_in_executor(self._threads, create)
        placed = self._placed(topic_id, key)
        if placed is None and self._was_deleted(topic_id):
            self._partitions.discard(hot)  # deleted while its log was opened
        elif placed is None or self._node_id not in placed.replicas:
            self._partitions.set_aside(hot, for_later=placed is None)
        else:
            returns = self._partitions.is_elsewhere(key)
            opened = self._partitions.add(hot, placed.leader_epoch, started=before is not None)
            self._take_up(opened, returns=returns)

    def _placed(self, topic_id: TopicId, key: TopicPartition) -> PartitionImage | None:
        """None if the metadata lacks the partition: its topic was deleted, or the metadata has become older."""
        topic = self._seen.topics.get(topic_id)
        return topic.partitions[key.partition] if topic is not None and key.partition < len(topic.partitions) else None

    def _take_up(self, opened: Partition, *, returns: bool = False) -> None:
        placed = self._seen.topics[opened.topic_id].partitions[opened.partition.partition]
        self._configure(opened)
        opened.moved_end = placed.moved_end
        known = newest_epoch(opened)
        if placed.leader == self._node_id and known <= placed.leader_epoch:
            opened.lead(placed.leader_epoch, self._followers(placed))
            # A partition that was elsewhere is compared first, because older metadata may lack its move.
            self._on_lead(opened) if returns else self._on_open(opened, True)
            self._has_gained(opened)
        else:
            self._on_open(opened, False)
            opened.follow(known, placed.leader)
            if refuses(opened, placed, self._troubles):
                self.outrun[opened] = None

    # --- closing ------------------------------------------------------------------------------------------------------
    def _close_from(self, topic: TopicImage, first: int) -> None:
        """Closes the partitions from `first` on, which the metadata no longer has. The logs are removed if the topic was
        deleted. Otherwise the controller may have been started with an older data directory, and they are set aside."""
        is_deleted = self._was_deleted(topic.topic_id)
        for number in range(first, len(topic.partitions)):
            key, identity = TopicPartition(topic.name, number), (topic.topic_id, number)
            self._wanted.pop(identity, None)
            self._unopened.pop(identity, None)
            self._partitions.forget_elsewhere(key)
            partition = self._partitions.find(key)
            if partition is not None:
                self._forget_trouble(topic.topic_id, key)
                self._on_close(partition)
                leave = self._partitions.discard if is_deleted else partial(self._partitions.set_aside, for_later=True)
                self._leaving.append((self._partitions.close_deleted(partition), leave))
                self._has_lost(partition)
            elif identity not in self._being_opened and self._partitions.why_held_back(key) is not None:
                self._remove_held_back(topic.topic_id, key)

    def _was_deleted(self, topic_id: TopicId) -> bool:
        """Whether the metadata has the topic among those that are or were deleted. It keeps only the newest deletions."""
        return topic_id in self._seen.deleting or topic_id in self._seen.gone

    def _send_elsewhere(self, topic: TopicImage, key: TopicPartition, known: Partition | None) -> None:
        """Closes a partition that this node no longer replicates, and sends its callers to the other nodes."""
        for queue in (self._wanted, self._unopened):
            queue.pop((topic.topic_id, key.partition), None)
        self._forget_trouble(topic.topic_id, key)
        if known is None:
            self._partitions.note_elsewhere(key)
            return
        # A log that is set aside here is never taken up again: if the partition comes back, its other leaders' log is newer.
        has_copy = self._has_copy(known)
        leave = self._partitions.discard if has_copy else partial(self._partitions.set_aside, for_later=False)
        self._on_close(known)
        known.resign(NotLeader(f"{key}: this node is no longer a replica; refresh metadata"))
        self._leaving.append((self._partitions.close_elsewhere(known), leave))
        self._has_lost(known)

    def _remove_held_back(self, topic_id: TopicId, key: TopicPartition) -> None:
        self._forget_trouble(topic_id, key)
        try:
            self._partitions.remove_held_back(key, topic_id, was_deleted=self._was_deleted(topic_id))
        except (LogError, OSError) as error:
            events.error(log, "partition.left_behind", partition=key, error=error)

    def _forget_trouble(self, topic_id: TopicId, key: TopicPartition) -> None:
        """Called when the partition is open or has moved to other nodes, or when its topic is deleted."""
        self._recovering.pop((topic_id, key.partition), None)
        self._troubles.ends((topic_id, key.partition))
        self._partitions.release(key)

    async def _discard_leaving(self) -> None:
        """Discards the directories of closed partitions, a few in each turn of the event loop: a topic may have thousands."""
        while self._leaving:
            for _ in range(min(DISCARDS_A_TURN, len(self._leaving))):
                hot, leave = self._leaving.popleft()
                try:
                    leave(hot)
                except (LogError, OSError) as error:
                    events.error(log, "partition.left_behind", partition=hot.partition, error=error)
            await asyncio.sleep(0)

    def _configure(self, partition: Partition) -> None:
        settings = self._configs.log_settings(self._seen, partition.partition.topic)
        if partition.log.hot.settings != settings:
            partition.log.hot.reconfigure(settings)
            partition.tier_due_ms = 0
        partition.settle_queues()
        if (placed := self._placed(partition.topic_id, partition.partition)) is not None:
            partition.set_min_in_sync(settings.min_insync_replicas, len(placed.own_replicas))


def _set_aside(directory: PartitionDirectory, data: DataDirectory) -> str:
    aside = data.mark_stray(directory)
    events.warning(log, "partition.stray", partition=directory.partition, path=directory.path, renamed_to=aside)
    return aside


def _say_defect(partition: Partition, work: str, defect: Exception) -> None:
    events.error(log, "partition.defect", partition=partition.partition, work=work, defect=defect)
