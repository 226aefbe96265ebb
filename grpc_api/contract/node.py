"""Questions that only the node itself can answer, about its disk, producers and quorum. Not served across a channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from grpc_api.contract.core import Core
from grpc_api.contract.features import Features
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


class LogReplica(NamedTuple):
    """`size_bytes` counts the disk only, not the bucket; `offset_lag` is the distance to the high watermark in offsets."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int = 0


class LogDirectory(NamedTuple):
    """One data directory: its file system's size and free space in bytes (-1 if unknown), and the replicas in
    it. `replicas` can be iterated once, and each is read when the iteration reaches it."""

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: Iterable[LogReplica]
    error: LogError | None = None


class ActiveProducer(NamedTuple):
    """A partition's state of an idempotent producer; -1 where a field is unknown. `last_timestamp` is ms since 1970."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


class QuorumDescription(NamedTuple):
    """The metadata log's leader, its term, and the offset after its last durable entry, at `now_ms` (ms since 1970)."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    now_ms: int


class NodeQueries(Protocol):
    """State of this node alone, for tools: its disks, producers, metadata quorum and clients."""

    def log_directories(self) -> Sequence[LogDirectory]:
        """Every data directory with all of its partitions. Blocks while the file system answers."""

    def producers(self, partition: TopicPartition) -> Sequence[ActiveProducer]:
        """Recently active idempotent producers. Raises UnknownTopicOrPartition if this node does not hold the partition."""

    def quorum(self) -> QuorumDescription: ...

    def client_metrics(self) -> Sequence[str]:
        """The names of the subscriptions to clients' metrics (KIP-714); DescribeConfigs returns their settings."""


class CallerTurns(Protocol):
    """The turns of a caller on the event loop. The coordinators' records for its requests between `begin` and `end` are written
    together at `end`; the record of a coordinator's first request in a turn may be written at once. After `end`, answers that
    wait only for these records are complete."""

    @property
    def has_writes(self) -> bool:
        """Whether anything waits for the end of the turn."""

    def begin(self) -> None: ...

    def end(self) -> None:
        """May be called without `begin`."""


class NodeCore(Core, Protocol):
    """The core in this process, as the Kafka gateway uses it."""

    @property
    def turns(self) -> CallerTurns: ...

    @property
    def node(self) -> NodeQueries: ...

    @property
    def features(self) -> Features: ...
