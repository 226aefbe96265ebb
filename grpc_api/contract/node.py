"""What only the node itself can answer: its disk, its producers, its part in the quorum. Not served across a channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from grpc_api.contract.core import Core
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


class LogReplica(NamedTuple):
    """`size_bytes` is what lies on the disk (not in the bucket), `offset_lag` how far the high watermark is ahead."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int = 0


class LogDirectory(NamedTuple):
    """One data directory: its file system's size and free space in bytes (-1 where the disk does not say), and the replicas in
    it. `replicas` can be iterated once; each is looked at when the iteration reaches it."""

    path: str
    total_bytes: int
    usable_bytes: int
    replicas: Iterable[LogReplica]
    error: LogError | None = None


class ActiveProducer(NamedTuple):
    """What a partition remembers of an idempotent producer; -1 where there is nothing to say."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


class QuorumDescription(NamedTuple):
    """The metadata log's leader, its term, and the offset after its last durable entry. `now_ms` is when this was so."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    now_ms: int


class NodeQueries(Protocol):
    def log_directories(self) -> Sequence[LogDirectory]:
        """Every data directory with all of its partitions. Asks the disk; may block for as long."""

    def producers(self, partition: TopicPartition) -> Sequence[ActiveProducer]:
        """Who has written with a producer id lately. UnknownTopicOrPartition where this node does not hold it."""

    def quorum(self) -> QuorumDescription: ...

    def client_metrics(self) -> Sequence[str]:
        """The names of the subscriptions to clients' metrics (KIP-714); their configs say the rest."""


class NodeCore(Core, Protocol):
    """The core in this process, as the Kafka gateway uses it."""

    @property
    def node(self) -> NodeQueries: ...
