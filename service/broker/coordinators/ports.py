"""The parts of a broker that coordinators and the contract's services use, as Protocols that tests implement in a few lines."""

from __future__ import annotations

from typing import Protocol, TypeVar

from storage_tiers.types import TopicId, TopicPartition

Led = TypeVar("Led", covariant=True)


class ExistingPartitions(Protocol):
    """The partitions of the cluster's live topics (`KnownPartitions`)."""

    def has(self, topic: str, partition: int) -> bool: ...


class KnownTopics(ExistingPartitions, Protocol):
    """The cluster's topics (`KnownPartitions`)."""

    def partitions_of(self, topic: str) -> int:
        """The number of the topic's partitions; 0 if there is no such topic."""

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def id_of(self, topic: str) -> TopicId | None: ...


class LedPartitions(Protocol[Led]):
    """The partitions of this node (`Partitions`)."""

    def get(self, partition: TopicPartition) -> Led: ...


class CoordinatorTopic(Protocol):
    """A coordinator's topic (`InternalTopic`)."""

    def partition_of(self, key: str) -> int | None: ...

    async def coordinator(self, key: str) -> int: ...
