"""Topics, their partitions and their configs: the administrative part of the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from storage_tiers.errors import LogError
from storage_tiers.types import TopicId, TopicPartition


class Endpoint(NamedTuple):
    """A listener's name with an address: the one that it is bound to, or the one that it advertises to clients."""

    listener: str
    host: str
    port: int


def text_of(host: str, port: int) -> str:
    """HOST:PORT in the syntax of clients and URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class BrokerDescription(NamedTuple):
    """A broker. `endpoints` are its advertised addresses, one for each listener, in the broker's order; `grpc` is HOST:PORT of
    its gRPC listener, empty if it has none."""

    node_id: int
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    grpc: str = ""

    def at(self, listener: str) -> Endpoint | None:
        """The address advertised to that listener's clients; None if the broker has no such listener."""
        return next((each for each in self.endpoints if each.listener == listener), None)


class PartitionDescription(NamedTuple):
    """A partition. `leader` is -1, and `error` set, while no replica can lead. Replicas are given by node id.
    While the partition moves to another node, `adding` and `removing` are the replicas that the move changes (KIP-455)."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    error: LogError | None = None
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()


class TopicDescription(NamedTuple):
    """A topic; its partitions are in order of their numbers. `internal` marks the cluster's own topics, such as
    `__consumer_offsets`."""

    name: str
    topic_id: TopicId
    partitions: Sequence[PartitionDescription]
    internal: bool = False


class ClusterDescription(NamedTuple):
    """The cluster. `controller_id` is the live broker to which clients send requests for the controller, -1 if no broker is
    live. `brokers` are the live ones."""

    cluster_id: str
    controller_id: int
    brokers: Sequence[BrokerDescription]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `partitions` and `replication_factor` are -1 for the broker's defaults; `assignments` (partition ->
    node ids), if given, replaces both. A config with the value None gets its default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class ConfigSource(IntEnum):
    """The source of a config's value, with DescribeConfigs' numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigKind(IntEnum):
    """DescribeConfigs' value types."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSynonym(NamedTuple):
    """One source that sets a config, with the name that it has there. `value` is None for a sensitive key."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """A config with its effective value, None for a sensitive key. `synonyms` are in order of precedence, the effective one
    first."""

    name: str
    value: str | None
    source: ConfigSource
    kind: ConfigKind
    read_only: bool = False
    sensitive: bool = False
    synonyms: Sequence[ConfigSynonym] = ()
    documentation: str | None = None


class CreatedTopic(NamedTuple):
    """A created topic, or with `validate_only` the topic that would be created; `configs` are its effective values."""

    name: str
    topic_id: TopicId
    partitions: int
    replication_factor: int
    configs: Sequence[ConfigEntry]


class ResourceKind(IntEnum):
    """ConfigResource.Type's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    """A resource that has configs. A broker's `name` is its id in decimal, or empty for the cluster-wide default."""

    kind: ResourceKind
    name: str


class AlterOp(IntEnum):
    """IncrementalAlterConfigs' operations (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigAlteration(NamedTuple):
    """One change of a config. `value` is None for DELETE. APPEND and SUBTRACT change a LIST."""

    name: str
    op: AlterOp
    value: str | None


class Topics(Protocol):
    """The topics of a cluster. A LogError in a sequence of answers concerns only the topic at that index."""

    def cluster(self) -> ClusterDescription:
        """The cluster, from the newest metadata that this process has seen."""

    def describe(
        self, names: Sequence[str] | None = None, topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[TopicDescription | LogError]:
        """Describes topics, from the newest metadata that this process has seen: all of them if `names` is None and no ids are
        given; otherwise one answer per name, then one per id, in order. A missing topic's answer is InvalidTopic,
        UnknownTopicOrPartition or UnknownTopicId."""

    def leader(self, partition: TopicPartition) -> tuple[int, int]:
        """(node id, leader epoch) of the partition's leader, from the newest metadata that this process has seen. The node is
        -1 while no replica can lead; both are -1 for a partition that does not exist."""

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Sequence[CreatedTopic | LogError]:
        """One answer per topic, in order. With `validate_only` nothing is created."""

    async def auto_create(self, names: Sequence[str]) -> None:
        """Creates missing topics that a Metadata request names, if `auto.create.topics.enable` allows it. `describe` then shows
        those that exist."""

    async def delete(
        self, names: Sequence[str], topic_ids: Sequence[TopicId] = ()
    ) -> Sequence[tuple[str, TopicId] | LogError]:
        """One answer per name, then one per id, in order."""

    async def create_partitions(
        self, topic: str, count: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool = False
    ) -> None:
        """Grows the topic to `count` partitions. `assignments` has the node ids of each new partition; if it is None, the
        cluster chooses. Raises UnknownTopicOrPartition, and InvalidPartitions unless `count` is above the current number."""

    async def elect_unclean(self, partition: TopicPartition) -> None:
        """Elects a leader that may lack acknowledged records, as after the loss of a disk, for a partition without a leader
        (KIP-460). Does nothing if the partition has a leader. Raises UnknownTopicOrPartition, and LeaderNotAvailable if no
        replica's node is alive."""

    async def reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> None:
        """Begins to move the partition to another node; None cancels the move (KIP-455). `describe` shows a move until it ends.
        Does nothing if the partition is already there. Raises UnknownTopicOrPartition, InvalidReplicaAssignment,
        InvalidReplicationFactor (for several nodes) and NoReassignmentInProgress."""

    async def unregister_broker(self, broker_id: int) -> None:
        """Removes a stopped broker without partitions from the cluster. Raises BrokerNotRegistered, and InvalidRequest if the
        broker runs or has partitions."""

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls `listener` on the loop after each change that `cluster` or `describe` shows, and before the request for the
        change is answered. The returned function ends the calls."""


class Configs(Protocol):
    """Configs of topics, brokers and other resources by Kafka's keys. Values are texts in Kafka's form."""

    async def describe_configs(self, resource: Resource, keys: Sequence[str] | None = None) -> Sequence[ConfigEntry]:
        """Every config, or those that `keys` names, with its synonyms in order of precedence. Raises UnknownTopicOrPartition or
        InvalidRequest for an unknown resource."""

    async def alter_configs(
        self,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        """Makes all alterations or none. With `replace`, all other keys return to their defaults (AlterConfigs before KIP-339).
        Raises InvalidConfig for an illegal value, InvalidRequest for a key that cannot be changed."""
