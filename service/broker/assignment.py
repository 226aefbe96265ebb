"""Keeps the open partitions equal to what the metadata image gives this node: opens, closes, reconfigures.

What the disk refuses for one partition holds no other one up: it is logged, and what could not be opened is tried again
(`retry`), as a full disk has room again some day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from grpc_api.contract.topics import ResourceKind
from service.broker.partition import Partition
from service.broker.partitions import Partitions
from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage, TopicImage
from storage_tiers.errors import LogError
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)


class Assignment:
    """`on_open` decides whether a partition may lead at once; `on_close` is told before one goes."""

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
        self._unopened: set[TopicId] = set()

    def recover(self, image: MetadataImage, data: DataDirectory, *, clean: bool) -> None:
        """At start: sets aside what belongs to no topic of the image, then opens all partitions. Blocking.

        Raises the LogError of a partition that cannot be opened: a node must not come up without what it acknowledged."""
        for directory in data.partitions():
            topic = image.topic(directory.partition.topic)
            if directory.topic_id is None or (topic is not None and topic.topic_id == directory.topic_id):
                continue
            if directory.topic_id in image.deleting:
                data.set_deleted(directory)
                continue
            log.warning(
                "%s belongs to no topic of this cluster: renamed to %s", directory.path, data.set_aside(directory)
            )
        for topic in image.topics.values():
            self._open_topic(image, topic, clean=clean, new=False)
        data.remove_deleted()
        self._seen = image

    def follow(self, image: MetadataImage) -> None:
        """After every change of the image."""
        before, self._seen = self._seen, image
        if image.topics is not before.topics:
            self._follow_topics(before, image)
        if image.configs is not before.configs:
            self._follow_configs(before, image)

    async def retry(self) -> None:
        """Opens what could not be opened when it was assigned."""
        for topic_id in tuple(self._unopened):
            topic = self._seen.topics.get(topic_id)
            self._unopened.discard(topic_id)
            if topic is not None:
                self._try_to_open(self._seen, topic)

    def _follow_topics(self, before: MetadataImage, image: MetadataImage) -> None:
        for topic_id, topic in before.topics.items():
            if topic_id not in image.topics:
                self._close_topic(topic)
        for topic_id, topic in image.topics.items():
            if before.topics.get(topic_id) is not topic:
                self._try_to_open(image, topic)

    def _follow_configs(self, before: MetadataImage, image: MetadataImage) -> None:
        """Looks at the partitions of the topics that changed; at all of them where a broker's configs did."""
        known, now = before.configs, image.configs
        changed = {resource for resource in known.keys() | now.keys() if known.get(resource) is not now.get(resource)}
        everywhere = any(resource.kind is not ResourceKind.TOPIC for resource in changed)
        topics = {resource.name for resource in changed}
        for partition in self._partitions:
            if everywhere or partition.partition.topic in topics:
                try:
                    self._configure(partition, image)
                except (LogError, OSError) as error:
                    log.error("%s keeps its old configs: %s", partition.partition, error)

    def _try_to_open(self, image: MetadataImage, topic: TopicImage) -> None:
        try:
            self._open_topic(image, topic, clean=True, new=True)
        except (LogError, OSError) as error:
            self._unopened.add(topic.topic_id)
            log.error("a partition of %s could not be opened, it is tried again: %s", topic.name, error)

    def _open_topic(self, image: MetadataImage, topic: TopicImage, *, clean: bool, new: bool) -> None:
        for number, placed in enumerate(topic.partitions):
            key = TopicPartition(topic.name, number)
            known = self._partitions.find(key)
            if known is not None:
                if known.state.leader_epoch != placed.leader_epoch:
                    known.state.new_epoch(placed.leader_epoch)
                continue
            if self._node_id not in placed.replicas:
                continue
            settings = self._configs.log_settings(image, topic.name)
            opened = self._partitions.open(
                key, TopicId(topic.topic_id), settings, placed.leader_epoch, clean=clean, new=new
            )
            self._configure(opened, image)
            self._on_open(opened)
            if opened.unavailable is None:
                opened.log.hot.begin_epoch(placed.leader_epoch)

    def _close_topic(self, topic: TopicImage) -> None:
        for number in range(len(topic.partitions)):
            partition = self._partitions.find(TopicPartition(topic.name, number))
            if partition is not None:
                self._on_close(partition)
                try:
                    self._partitions.remove(partition.partition)
                except (LogError, OSError) as error:
                    log.error("%s is deleted, its directory stays until the next start: %s", partition.partition, error)

    def _configure(self, partition: Partition, image: MetadataImage) -> None:
        topic = partition.partition.topic
        settings = self._configs.log_settings(image, topic)
        if partition.log.hot.settings != settings:
            partition.log.hot.reconfigure(settings)
            partition.tier_due_ms = 0
        partition.deep_validation = self._configs.topic_value(image, topic, "tidelog.record.validation") == "full"
