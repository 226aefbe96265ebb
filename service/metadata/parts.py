"""The values that an image of the cluster's metadata holds: partitions, topics, brokers, starts, and what a batch changed.

Pure. All classes are frozen. `service.metadata.image` has the image, and `service.metadata.delta` makes the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from grpc_api.contract.topics import Endpoint, Resource
from storage_tiers.types import TopicId

#: The `leader` of a partition that has none.
NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition. `leader` is a broker id, NO_LEADER for none; `replicas` and the other tuples are broker ids.

    `directories` are the directory ids of `replicas`, in the same order; empty if not known. `adding` and `removing` are the
    replicas that a reassignment adds and removes (KIP-455). `eligible_leaders` are not in sync, but have every committed record
    (KIP-966).
    """

    index: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    eligible_leaders: tuple[int, ...] = ()
    last_known_leaders: tuple[int, ...] = ()
    #: True if its leader was elected uncleanly and has not repaired the log yet.
    recovering: bool = False
    #: The log end at which another broker handed the partition over to its present replica; 0 if none did. The bucket has
    #: everything below this offset. A local log of the present replica that ends below it has not been started from the bucket
    #: yet.
    moved_end: int = 0

    @property
    def own_replicas(self) -> tuple[int, ...]:
        """The replicas without those that a reassignment adds."""
        return tuple(each for each in self.replicas if each not in self.adding)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A live topic. `partitions[i].index == i`."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class DeletingTopic:
    """A deleted topic, hidden from clients, whose data is still being removed."""

    name: str
    topic_id: TopicId
    partition_count: int


class SupportedFeature(NamedTuple):
    """The levels of a feature that a broker has registered, both bounds included."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. `endpoints` are its advertised listeners; `disk_identity` is its directory id; `features` are the
    features that it supports at a level above 0; `start_id` names the process that registered; `peer` is HOST:PORT of its gRPC
    listener, where the other brokers reach it.

    A broker that is `fenced` leads nothing. One that is `shutting_down` leads nothing new.
    """

    broker_id: int
    broker_epoch: int
    disk_identity: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    features: tuple[SupportedFeature, ...] = ()
    start_id: bytes = b""
    fenced: bool = False
    shutting_down: bool = False
    peer: str = ""

    @property
    def may_lead(self) -> bool:
        return not (self.fenced or self.shutting_down)


@dataclass(frozen=True, slots=True)
class SessionImage:
    """The commands that a registered broker has sent and that are completed, but whose answers it may not have received:
    encoded results by sequence number. It has the answers of all commands below `answered_below`."""

    broker_epoch: int
    answered_below: int
    results: Mapping[int, bytes]


class TermStart(NamedTuple):
    """A term of the metadata log, and the offset of its first entry."""

    term: int
    offset: int


@dataclass(frozen=True, slots=True)
class StartImage:
    """A node start that claims, or holds, the incarnation in the bucket."""

    node_id: int
    incarnation: int
    start_id: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a batch of records: ids of topics (created, changed, being deleted or gone), resources whose configs were
    set, and ids of brokers (registered, changed or gone). Each appears once, in the order touched. Subscribers of the metadata
    look only at these."""

    topics: tuple[TopicId, ...] = ()
    configs: tuple[Resource, ...] = ()
    brokers: tuple[int, ...] = ()

    @classmethod
    def joined(cls, several: Iterable[Changes]) -> Changes:
        topics: dict[TopicId, None] = {}
        configs: dict[Resource, None] = {}
        brokers: dict[int, None] = {}
        for changes in several:
            topics.update(dict.fromkeys(changes.topics))
            configs.update(dict.fromkeys(changes.configs))
            brokers.update(dict.fromkeys(changes.brokers))
        return cls(tuple(topics), tuple(configs), tuple(brokers))


@dataclass(frozen=True, slots=True)
class TakeOverImage:
    """A take-over in progress, with the content of `cluster.json` when it started."""

    incarnation: int
    start_id: str
