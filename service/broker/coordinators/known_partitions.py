"""Topic lookups in the newest metadata, for coordinators: whether a partition exists, and a topic's name and id."""

from __future__ import annotations

from service.metadata.following import Metadata
from storage_tiers.types import TopicId


class KnownPartitions:
    """The topics of the newest metadata image."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def has(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self.partitions_of(topic)

    def partitions_of(self, topic: str) -> int:
        known = self._metadata.image.topic(topic)
        return 0 if known is None else len(known.partitions)

    def name_of(self, topic_id: TopicId) -> str | None:
        known = self._metadata.image.topic_by_id(topic_id)
        return None if known is None else known.name

    def id_of(self, topic: str) -> TopicId | None:
        known = self._metadata.image.topic(topic)
        return None if known is None else known.topic_id
