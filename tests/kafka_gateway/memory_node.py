"""The contract's `Node` for a memory core."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.node import ActiveProducer, LogDirectory, LogReplica, QuorumDescription
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition

TOTAL_BYTES, USABLE_BYTES = 1 << 40, 1 << 39


class MemoryNode:
    """`sizes`: bytes by partition; `disk_error`: the log directory's error; `active`: the producers of each partition."""

    def __init__(self, directory: str, sizes: dict[TopicPartition, int]) -> None:
        self.directory = directory
        self.sizes = sizes
        self.disk_error: LogError | None = None
        self.subscriptions: list[str] = []
        self.active: dict[TopicPartition, list[ActiveProducer]] = {}

    def log_directories(self) -> Sequence[LogDirectory]:
        replicas = [LogReplica(partition, size) for partition, size in self.sizes.items()]
        return [LogDirectory(self.directory, TOTAL_BYTES, USABLE_BYTES, replicas, self.disk_error)]

    def producers(self, partition: TopicPartition) -> Sequence[ActiveProducer]:
        if partition not in self.sizes:
            raise UnknownTopicOrPartition(f"{partition} does not exist")
        return self.active.get(partition, [])

    def client_metrics(self) -> Sequence[str]:
        return self.subscriptions

    def quorum(self) -> QuorumDescription:
        return QuorumDescription(1, 3, 150, 1_700_000_000_000)
