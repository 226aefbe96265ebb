"""The cluster's metadata as one immutable value, and the only function that makes the next value.

`image.apply_batch(records)` returns a new image and leaves the old one unchanged, so a request or planner that holds an image
sees one consistent state. Images share everything that a batch does not change. Mappings that grow with the number of topics
are hash array mapped tries, so a change costs the same with ten topics and with ten thousand.

Invariants: applying is a pure function of (image, records): no clock, no randomness, no configuration. A batch applies whole,
or raises MetadataCorrupt and changes nothing. A topic id is live, deleting or unknown, never two of these. Leader epochs,
partition epochs, broker epochs and producer ids only rise.

Not promised: valid requests, which the planner checks; durability, which the log provides; any order of the topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from immutables import Map

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.delta import Delta
from service.metadata.parts import (
    BrokerImage,
    Changes,
    DeletingTopic,
    PartitionImage,
    SessionImage,
    StartImage,
    TakeOverImage,
    TermStart,
    TopicImage,
)
from storage_tiers.types import TopicId

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


def _empty() -> Mapping[Any, Any]:
    return _EMPTY


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata after one batch. Its mappings are read-only; `apply_batch` returns the next image.

    `topics` is by id, `topic_ids` by name. `incarnation` is the number that the bucket last confirmed for this node, 0 before
    the first; `unconfirmed_starts` are the claims made since, oldest first. `changes` has the changes of the last batch.
    """

    cluster_id: str = ""
    topics: Map[TopicId, TopicImage] = field(default_factory=Map)
    topic_ids: Map[str, TopicId] = field(default_factory=Map)
    #: Names of live topics, by their `folded_name` if that is not None.
    folded_names: Map[str, str] = field(default_factory=Map)
    deleting: Mapping[TopicId, DeletingTopic] = field(default_factory=_empty)
    configs: Map[Resource, Mapping[str, str]] = field(default_factory=Map)
    brokers: Mapping[int, BrokerImage] = field(default_factory=_empty)
    #: The highest broker epoch of brokers that are no longer registered, 0 without one.
    gone_broker_epoch: int = 0
    #: Completed commands whose answers may be lost, by the broker that sent them.
    sessions: Mapping[int, SessionImage] = field(default_factory=_empty)
    features: Mapping[str, int] = field(default_factory=_empty)
    next_producer_id: int = 0
    incarnation: int = 0
    start_id: bytes = b""
    unconfirmed_starts: tuple[StartImage, ...] = ()
    #: The revision of `topic.json` that the bucket last showed, for live topics.
    topic_files: Map[TopicId, int] = field(default_factory=Map)
    #: Ids of completely deleted topics, the newest last.
    gone: tuple[TopicId, ...] = ()
    #: Terms of the metadata log, the newest last (see `history.py`).
    terms: tuple[TermStart, ...] = ()
    #: Set while a take-over runs; until it is done, the rest of the image is incomplete.
    take_over: TakeOverImage | None = None
    changes: Changes = field(default=Changes(), compare=False)

    def topic(self, name: str) -> TopicImage | None:
        """The live topic of that name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """The live topic of that id."""
        return self.topics.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        topic = self.topic(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def config(self, kind: ResourceKind, name: str) -> Mapping[str, str]:
        """The dynamic configs of that resource; empty if there are none."""
        return self.configs.get(Resource(kind, name), _EMPTY)

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.config(ResourceKind.TOPIC, name)

    def broker_config(self, node_id: int | None) -> Mapping[str, str]:
        """The dynamic configs of one broker, or with None the default of all brokers."""
        return self.config(ResourceKind.BROKER, "" if node_id is None else str(node_id))

    def apply(self, record: pb.MetadataRecord) -> MetadataImage:
        return self.apply_batch((record,))

    def apply_batch(self, records: Iterable[pb.MetadataRecord]) -> MetadataImage:
        """The image after all of `records`. Raises MetadataCorrupt if one of them does not match the state."""
        delta = Delta(self)
        for record in records:
            delta.apply(record)
        return replace(self, **delta.changed())

    def __repr__(self) -> str:
        partitions = sum(len(topic.partitions) for topic in self.topics.values())
        return (
            f"MetadataImage(cluster {self.cluster_id!r}, {len(self.topics)} topics, {partitions} partitions, "
            f"{len(self.deleting)} deleting, {len(self.brokers)} brokers, next producer id {self.next_producer_id})"
        )
