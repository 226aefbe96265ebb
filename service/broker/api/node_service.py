"""The contract's `NodeQueries`: this node's own state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from grpc_api.contract.node import ActiveProducer, LogDirectory, LogReplica, QuorumDescription
from grpc_api.contract.topics import ResourceKind
from service.broker.partition.partitions import Partitions
from service.metadata.following import Metadata
from storage_tiers.clock import Clock
from storage_tiers.errors import StorageError
from storage_tiers.types import TopicPartition


class NodeService:
    """`data_path` is the data directory."""

    def __init__(
        self, partitions: Partitions, metadata: Metadata, *, node_id: int, data_path: str, clock: Clock
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._node_id = node_id
        self._data_path = os.path.abspath(data_path)
        self._clock = clock

    def log_directories(self) -> Sequence[LogDirectory]:
        replicas = self._replicas()
        try:
            disk = os.statvfs(self._data_path)
        except OSError as error:
            failure = StorageError(f"{self._data_path}: {error.strerror}; repair or replace the disk")
            return [LogDirectory(self._data_path, -1, -1, replicas, failure)]
        total, usable = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        return [LogDirectory(self._data_path, total, usable, replicas)]

    def _replicas(self) -> Iterator[LogReplica]:
        for opened in sorted(self._partitions, key=lambda opened: opened.partition):
            yield LogReplica(
                opened.partition, opened.log.hot.size_bytes, max(0, opened.state.high_watermark - opened.log.end_offset)
            )

    def producers(self, partition: TopicPartition) -> Sequence[ActiveProducer]:
        led = self._partitions.get(partition)
        led.check_readable()
        return [
            ActiveProducer(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
            for producer_id, entry in led.log.hot.end.producers.producers.items()
        ]

    def client_metrics(self) -> Sequence[str]:
        resources = self._metadata.image.configs
        return sorted(each.name for each in resources if each.kind is ResourceKind.CLIENT_METRICS and resources[each])

    def quorum(self) -> QuorumDescription:
        metadata = self._metadata
        leader = self._node_id if metadata.controller_id is None else metadata.controller_id
        return QuorumDescription(leader, metadata.term, metadata.last_index + 1, self._clock.unix_ms())
