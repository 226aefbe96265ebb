"""The contract's `Topics`: answered from the metadata image, changed through the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import overload

from grpc_api.contract.topics import (
    BrokerDescription,
    ClusterDescription,
    CreatedTopic,
    NewTopic,
    PartitionDescription,
    TopicDescription,
)
from service.broker.coordinators.internal_topics import CoordinatedTopics
from service.broker.partition.assignment import Assignment
from service.broker.partition.partitions import Partitions
from service.configs.describing import ConfigDescriptions
from service.configs.resolve import Resolver
from service.metadata import planner
from service.metadata.commands import CreatePartitions, CreateTopic, DeleteTopic
from service.metadata.controller import Controller
from service.metadata.image import Changes, MetadataImage, TopicImage
from service.metadata.internal_topics import INTERNAL_TOPICS
from service.metadata.log import MetadataLog
from storage_tiers import events
from storage_tiers.clock import Rng
from storage_tiers.errors import LogError, StorageError, UnknownTopicId, UnknownTopicOrPartition, as_value
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)


class TopicService:
    """A change is answered when it is durable and `assignment` has settled. New partitions then accept records, or
    `partitions` holds their error. Every answer is a value or the LogError of its topic: InvalidTopic, TopicExists,
    UnknownTopicOrPartition, UnknownTopicId, InvalidConfig, PolicyViolation, or StorageError if the disk refuses."""

    def __init__(
        self,
        metadata: MetadataLog,
        controller: Controller,
        configs: Resolver,
        descriptions: ConfigDescriptions,
        rng: Rng,
        assignment: Assignment,
        partitions: Partitions,
        coordinated: CoordinatedTopics,
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._configs = configs
        self._descriptions = descriptions
        self._rng = rng
        self._assignment = assignment
        self._partitions = partitions
        self._coordinated = coordinated
        self._listeners: list[Callable[[], None]] = []
        metadata.subscribe(self._changed)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def _changed(self, image: MetadataImage, changes: Changes) -> None:
        for listener in tuple(self._listeners):
            listener()

    def cluster(self) -> ClusterDescription:
        image = self._metadata.image
        brokers = [BrokerDescription(b.broker_id, b.endpoints, b.rack) for b in image.brokers.values()]
        return ClusterDescription(image.cluster_id, min(image.brokers, default=-1), brokers)

    def describe(
        self, names: Sequence[str] | None = None, topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[TopicDescription | LogError]:
        image = self._metadata.image
        if names is None and not topic_ids:
            return _Descriptions(tuple(image.topics.values()))
        answers: list[TopicDescription | LogError] = []
        for name in names or ():
            topic = image.topic(name)
            if topic is not None:
                answers.append(_description(topic))
                continue
            try:
                planner.check_topic_name(name)
                answers.append(UnknownTopicOrPartition(f"this cluster has no topic {name!r}"))
            except LogError as error:
                answers.append(as_value(error))
        for topic_id in topic_ids:
            topic = image.topic_by_id(topic_id)
            if topic is None:
                answers.append(UnknownTopicId(f"this cluster has no topic with the id {topic_id}"))
            else:
                answers.append(_description(topic))
        return answers

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[CreatedTopic | LogError]:
        answers: list[CreatedTopic | LogError] = []
        for topic in topics:
            try:
                answers.append(await self._create(topic, validate_only))
            except LogError as error:
                events.provoked(log, "topic.refused", by="create", topic=topic.name, asked="create", error=error)
                answers.append(as_value(error))
        return answers

    async def _create(self, topic: NewTopic, validate_only: bool) -> CreatedTopic:
        topic_id = planner.new_topic_id(self._metadata.image, self._rng)
        made = await self._controller.execute(CreateTopic(topic, topic_id, validate_only))
        await self._assignment.settled()
        if not validate_only:
            events.info(
                log,
                "topic.created",
                topic=topic.name,
                topic_id=str(made.topic_id),
                partitions=made.partitions,
                replication_factor=made.replication_factor,
            )
            failures = [
                self._partitions.why_held_back(TopicPartition(topic.name, number)) for number in range(made.partitions)
            ]
            if all(failures) and failures[0] is not None:
                raise StorageError(
                    f"topic {topic.name!r} was created, but none of its partitions could be opened; they are retried "
                    f"every few seconds: {failures[0]}"
                )
        given = {name: value for name, value in topic.configs.items() if value is not None}
        entries = self._descriptions.describe_new_topic(self._metadata.image, given)
        return CreatedTopic(topic.name, made.topic_id, made.partitions, made.replication_factor, entries)

    async def auto_create(self, names: Sequence[str]) -> None:
        if not self._configs.broker(self._metadata.image).auto_create_topics_enable:
            return
        missing = [name for name in names if self._metadata.image.topic(name) is None]
        await self.create([self._coordinated.get(name, partial(NewTopic, name))() for name in missing])

    async def delete(
        self, names: Sequence[str], topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[tuple[str, TopicId] | LogError]:
        answers: list[tuple[str, TopicId] | LogError] = []
        doomed: list[str | TopicId] = [*names, *topic_ids]
        for wanted in doomed:
            try:
                gone = await self._controller.execute(DeleteTopic(wanted))
                answers.append((gone.name, gone.topic_id))
                events.info(
                    log, "topic.deleted", topic=gone.name, topic_id=str(gone.topic_id), partitions=gone.partitions
                )
            except LogError as error:
                events.provoked(log, "topic.refused", by="delete", topic=str(wanted), asked="delete", error=error)
                answers.append(as_value(error))
        return answers

    async def create_partitions(
        self, topic: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool = False
    ) -> None:
        replicas = None if assignments is None else tuple(map(tuple, assignments))
        try:
            await self._controller.execute(CreatePartitions(topic, count, replicas, validate_only))
        except LogError as error:
            events.provoked(log, "topic.refused", by="add", topic=topic, asked="add partitions", error=error)
            raise
        await self._assignment.settled()
        if not validate_only:
            events.info(log, "topic.partitions_added", topic=topic, partitions=count)


class _Descriptions(Sequence[TopicDescription | LogError]):
    """Descriptions that are built on access, because building thousands at once would block the loop."""

    def __init__(self, topics: tuple[TopicImage, ...]) -> None:
        self._topics = topics

    def __len__(self) -> int:
        return len(self._topics)

    @overload
    def __getitem__(self, index: int) -> TopicDescription: ...
    @overload
    def __getitem__(self, index: slice) -> _Descriptions: ...
    def __getitem__(self, index: int | slice) -> TopicDescription | _Descriptions:
        if isinstance(index, slice):
            return _Descriptions(self._topics[index])
        return _description(self._topics[index])

    def __iter__(self) -> Iterator[TopicDescription | LogError]:
        return map(_description, self._topics)


def _description(topic: TopicImage) -> TopicDescription:
    partitions = [PartitionDescription(p.index, p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions]
    return TopicDescription(topic.name, topic.topic_id, partitions, topic.name in INTERNAL_TOPICS)
