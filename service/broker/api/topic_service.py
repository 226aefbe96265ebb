"""The contract's `Topics`: it answers from the metadata image, and makes changes through the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from service.metadata.commands import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectUnclean,
    Reassign,
    UnregisterBroker,
)
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.internal_topics import INTERNAL_TOPICS
from service.metadata.parts import NO_LEADER, BrokerImage, Changes, PartitionImage, TopicImage
from storage_tiers import events
from storage_tiers.clock import Rng
from storage_tiers.errors import (
    LeaderNotAvailable,
    LogError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    as_value,
)
from storage_tiers.types import TopicId, TopicPartition

log = logging.getLogger(__name__)


class TopicService:
    """A change is answered after it is durable and `assignment` has settled. New partitions then accept records, or
    `partitions` holds their error. Every answer is a value or the LogError of its topic: InvalidTopic, TopicExists,
    UnknownTopicOrPartition, UnknownTopicId, InvalidConfig, PolicyViolation, or StorageError if the disk refuses."""

    def __init__(
        self,
        metadata: Metadata,
        controller: Commands,
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
        live = [broker for broker in image.brokers.values() if not broker.fenced]
        brokers = [BrokerDescription(each.broker_id, each.endpoints, each.rack, each.peer) for each in live]
        return ClusterDescription(image.cluster_id, min((each.broker_id for each in live), default=-1), brokers)

    def describe(
        self, names: Sequence[str] | None = None, topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[TopicDescription | LogError]:
        image = self._metadata.image
        if names is None and not topic_ids:
            return _Descriptions(tuple(image.topics.values()), image.brokers)
        answers: list[TopicDescription | LogError] = []
        for name in names or ():
            topic = image.topic(name)
            if topic is not None:
                answers.append(_description(topic, image.brokers))
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
                answers.append(_description(topic, image.brokers))
        return answers

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        placed = self._metadata.image.partition(*partition)
        return (NO_LEADER, -1) if placed is None else (placed.leader, placed.leader_epoch)

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

    async def elect_unclean(self, partition: TopicPartition) -> None:
        known = self.leader(partition)
        await self._controller.execute(ElectUnclean(*partition))
        await self._assignment.settled()
        leader, epoch = self.leader(partition)
        if (leader, epoch) != known:
            events.warning(log, "partition.elected_uncleanly", partition=partition, leader=leader, epoch=epoch)

    async def reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> None:
        wanted = None if replicas is None else tuple(replicas)
        try:
            await self._controller.execute(Reassign(*partition, wanted))
        except LogError as error:
            events.provoked(log, "topic.refused", by="move", topic=partition.topic, asked="move", error=error)
            raise
        if wanted is None:
            events.info(log, "partition.move_cancelled", partition=partition)
        else:
            events.info(log, "partition.move_begun", partition=partition, replicas=str(list(wanted)))

    async def unregister_broker(self, broker_id: int) -> None:
        await self._controller.execute(UnregisterBroker(broker_id))
        events.info(log, "broker.unregistered", broker=broker_id)


class _Descriptions(Sequence[TopicDescription | LogError]):
    """Descriptions that are built on access, because building thousands at once would block the event loop."""

    def __init__(self, topics: tuple[TopicImage, ...], brokers: Mapping[int, BrokerImage]) -> None:
        self._topics = topics
        self._brokers = brokers

    def __len__(self) -> int:
        return len(self._topics)

    @overload
    def __getitem__(self, index: int) -> TopicDescription: ...
    @overload
    def __getitem__(self, index: slice) -> _Descriptions: ...
    def __getitem__(self, index: int | slice) -> TopicDescription | _Descriptions:
        if isinstance(index, slice):
            return _Descriptions(self._topics[index], self._brokers)
        return _description(self._topics[index], self._brokers)

    def __iter__(self) -> Iterator[TopicDescription | LogError]:
        return (_description(topic, self._brokers) for topic in self._topics)


def _description(topic: TopicImage, brokers: Mapping[int, BrokerImage]) -> TopicDescription:
    fenced = {broker_id for broker_id, broker in brokers.items() if broker.fenced}
    partitions = [
        PartitionDescription(
            placed.index,
            placed.leader,
            placed.leader_epoch,
            placed.replicas,
            placed.isr,
            tuple(each for each in placed.replicas if each in fenced) if fenced else (),
            _without_leader(topic.name, placed) if placed.leader == NO_LEADER else None,
            placed.adding,
            placed.removing,
        )
        for placed in topic.partitions
    ]
    return TopicDescription(topic.name, topic.topic_id, partitions, topic.name in INTERNAL_TOPICS)


def _without_leader(topic: str, placed: PartitionImage) -> LeaderNotAvailable:
    return LeaderNotAvailable(f"{topic}-{placed.index} waits for one of its brokers {list(placed.isr)}; retry")
