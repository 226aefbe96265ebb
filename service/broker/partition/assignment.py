"""Keeps the open partitions equal to what the metadata image gives this node: opens, closes, reconfigures.

New partitions are made in threads, some at a time in the order assigned: each costs a few fsyncs, for which the event loop must
not wait. Invariants: at most one log per name is being opened, after the directory of an earlier one has been moved away. A
partition deleted while it is opened is removed again.

A disk failure of one partition delays no other: it is logged, and `retry` opens the partition later, since a full disk may have
space again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from grpc_api.contract.topics import Resource, ResourceKind
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Phase
from service.configs.resolve import Resolver
from service.metadata.image import Changes, MetadataImage, TopicImage
from storage_tiers import events
from storage_tiers.errors import LogError, StorageError
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.hot.log import HotLog
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)

#: Directories of deleted partitions that are moved away before the event loop has its turn.
DISCARDS_A_TURN = 32
#: Partitions made at the same time.
OPENING_THREADS = 8
#: Seconds that creating a topic waits for its partitions; clients retry for partitions that take longer.
OPENING_PATIENCE_S = 20.0


class Assignment:
    """`on_open` decides whether a partition may lead at once, which ends its phase of opening; `on_close` is called before a
    partition is closed."""

    def __init__(
        self,
        partitions: Partitions,
        configs: Resolver,
        *,
        node_id: int,
        on_open: Callable[[Partition], None],
        on_close: Callable[[Partition], None],
    ) -> None:
        self._partitions = partitions
        self._configs = configs
        self._node_id = node_id
        self._on_open = on_open
        self._on_close = on_close
        self._seen = MetadataImage()
        self._wanted: dict[tuple[TopicId, int], TopicPartition] = {}  # in the order assigned
        self._unopened: dict[tuple[TopicId, int], TopicPartition] = {}
        #: Partitions that threads are opening; nothing else touches their directories.
        self._being_opened: set[tuple[TopicId, int]] = set()
        self._leaving: deque[HotLog] = deque()  # of deleted topics, their directories still in place
        self._opening: asyncio.Task[None] | None = None
        #: For partitions that failed to open at the start and may hold records: whether the previous stop was clean.
        self._recovering: dict[tuple[TopicId, int], bool] = {}
        self._troubles = events.Troubles()
        self._threads = ThreadPoolExecutor(OPENING_THREADS, thread_name_prefix="open")

    def recover(self, image: MetadataImage, data: DataDirectory, *, clean: bool, may_be_older: bool = False) -> None:
        """At start: sets aside what belongs to no topic of the image, then opens all partitions. Blocking. Of an image that
        `may_be_older` than the directory nothing is set aside: who takes the cluster over looks for it under its name.

        A partition that cannot be opened is held back alone: whoever asks for it is told why, its files and what the
        checkpoints say of it stay, and it is tried again as after this start."""
        for directory in data.partitions():
            topic = image.topic(directory.partition.topic)
            if directory.topic_id is None or (topic is not None and topic.topic_id == directory.topic_id):
                continue
            if directory.topic_id in image.deleting:
                data.mark_deleted(directory)
                continue
            if may_be_older:
                continue
            aside = data.mark_stray(directory)
            events.warning(log, "partition.stray", partition=directory.partition, path=directory.path, renamed_to=aside)
        self._seen = image
        held = [(topic, p) for topic in image.topics.values() for p in topic.partitions if self._node_id in p.replicas]
        self._partitions.note_lost(TopicPartition(topic.name, placed.index) for topic, placed in held)
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
        self._apply_configs(image, changes.configs)

    @property
    def unopened(self) -> int:
        """The number of partitions that could not be opened and are retried."""
        return len(self._unopened)

    @property
    def has_opened_all(self) -> bool:
        """Whether nothing is being opened, and nothing waits to be tried again."""
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
        """Finishes openings under way and starts no more."""
        self._wanted.clear()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        self._threads.shutdown()

    def _apply_topics(self, before: MetadataImage, image: MetadataImage, changed: Sequence[TopicId]) -> None:
        for topic_id in changed:
            known = before.topics.get(topic_id)
            if known is not None and topic_id not in image.topics:
                self._close_topic(known)
        for topic_id in changed:
            topic = image.topics.get(topic_id)
            if topic is not None:
                self._assign(topic)
        self._start_opening()

    def _assign(self, topic: TopicImage) -> None:
        for placed in topic.partitions:
            key = TopicPartition(topic.name, placed.index)
            known = self._partitions.find(key)
            if known is None:
                if self._node_id in placed.replicas:
                    self._wanted[topic.topic_id, placed.index] = key
            elif known.state.leader_epoch != placed.leader_epoch:
                known.begin_epoch(placed.leader_epoch)

    def _apply_configs(self, image: MetadataImage, changed: Sequence[Resource]) -> None:
        """Reconfigures the partitions of changed topics, or all partitions after a change of a broker's configs."""
        if any(resource.kind is ResourceKind.BROKER for resource in changed):
            concerned = list(self._partitions)
        else:
            topics = (image.topic(resource.name) for resource in changed if resource.kind is ResourceKind.TOPIC)
            places = (TopicPartition(topic.name, p.index) for topic in topics if topic for p in topic.partitions)
            concerned = [known for place in places if (known := self._partitions.find(place)) is not None]
        for partition in concerned:
            try:
                self._configure(partition, image)
            except (LogError, OSError) as error:
                events.error(log, "partition.keeps_configs", partition=partition.partition, error=error)

    # --- opening ------------------------------------------------------------------------------------------------------
    def _start_opening(self) -> None:
        if (self._wanted or self._leaving) and self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_wanted(), name="open partitions")

    async def _open_wanted(self) -> None:
        try:
            while self._wanted or self._leaving:
                # First: a new topic may have the name of a deleted one.
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
        if topic_id not in self._seen.topics:  # deleted meanwhile
            self._remove_held_back(topic_id, key)
        elif failure is not None:
            self._hold_back(topic_id, key, failure)
        else:
            self._forget_trouble(topic_id, key)

    def _hold_back(self, topic_id: TopicId, key: TopicPartition, error: Exception) -> None:
        place, defect = (topic_id, key.partition), None if isinstance(error, LogError | OSError) else error
        if self._troubles.begins(place, error):
            events.error(
                log, "partition.unopened", topic=key.topic, partition=key.partition, error=error, defect=defect
            )
        self._unopened[place] = key
        why = StorageError(f"{key} could not be opened: {error}")
        self._partitions.hold_back(key, why, known=place in self._recovering)

    async def _open(self, topic_id: TopicId, key: TopicPartition) -> None:
        number = key.partition
        topic = self._seen.topics.get(topic_id)
        if topic is None:
            return
        known = self._partitions.find(key)
        if known is not None:
            if known.phase is Phase.OPENING:  # its log is open, and something kept it from being taken up
                self._take_up(known)
            return
        settings = self._configs.log_settings(self._seen, topic.name)
        before = self._recovering.get((topic_id, number))
        if before is None:
            create = await self._partitions.creator(key, TopicId(topic_id), settings)
        else:
            create = self._partitions.opener(key, TopicId(topic_id), settings, clean=before)
        hot = await asyncio.get_running_loop().run_in_executor(self._threads, create)
        topic = self._seen.topics.get(topic_id)
        if topic is None:
            self._partitions.discard(hot)  # deleted meanwhile
        else:
            started = (topic_id, number) in self._recovering
            self._take_up(self._partitions.add(hot, topic.partitions[number].leader_epoch, started=started))

    def _take_up(self, opened: Partition) -> None:
        self._configure(opened, self._seen)
        self._on_open(opened)

    # --- closing ------------------------------------------------------------------------------------------------------
    def _close_topic(self, topic: TopicImage) -> None:
        for number in range(len(topic.partitions)):
            key, place = TopicPartition(topic.name, number), (topic.topic_id, number)
            self._wanted.pop(place, None)
            self._unopened.pop(place, None)
            partition = self._partitions.find(key)
            if partition is not None:
                self._forget_trouble(topic.topic_id, key)
                self._on_close(partition)
                self._leaving.append(self._partitions.close_deleted(partition))
            elif place not in self._being_opened and self._partitions.why_held_back(key) is not None:
                self._remove_held_back(topic.topic_id, key)

    def _remove_held_back(self, topic_id: TopicId, key: TopicPartition) -> None:
        self._forget_trouble(topic_id, key)
        try:
            self._partitions.remove_held_back(key)
        except (LogError, OSError) as error:
            events.error(log, "partition.left_behind", partition=key, error=error)

    def _forget_trouble(self, topic_id: TopicId, key: TopicPartition) -> None:
        """It is open, or its topic is deleted."""
        self._recovering.pop((topic_id, key.partition), None)
        self._troubles.ends((topic_id, key.partition))
        self._partitions.release(key)

    async def _discard_leaving(self) -> None:
        """Directories of deleted partitions, a few a turn of the event loop: a topic may have thousands."""
        while self._leaving:
            for _ in range(min(DISCARDS_A_TURN, len(self._leaving))):
                hot = self._leaving.popleft()
                try:
                    self._partitions.discard(hot)
                except (LogError, OSError) as error:
                    events.error(log, "partition.left_behind", partition=hot.partition, error=error)
            await asyncio.sleep(0)

    def _configure(self, partition: Partition, image: MetadataImage) -> None:
        settings = self._configs.log_settings(image, partition.partition.topic)
        if partition.log.hot.settings != settings:
            partition.log.hot.reconfigure(settings)
            partition.tier_due_ms = 0
        partition.settle_queues()
