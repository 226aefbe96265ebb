"""Loads a coordinator when this node gains the leadership of its partition, and unloads it when the leadership is lost.

If the bucket's log replaces the local log of a led partition, the partition's coordinator is loaded again. A later leader epoch
of a partition that this node already leads changes nothing, because the log is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from service.broker.coordinators.coordinator_log import DiskRoom, PartitionLog
from service.broker.partition.partition import Partition
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.ports import PLAIN, WriteSettings
from storage_tiers.errors import LogError


class Coordinators:
    """A listener of `Assignment`. `runtimes` and `writing` are keyed by the name of the internal topic."""

    def __init__(
        self,
        runtimes: Mapping[str, CoordinatorRuntime[Any]],
        disk: DiskRoom | None = None,
        writing: Mapping[str, WriteSettings] | None = None,
    ) -> None:
        self._runtimes = runtimes
        self._disk = disk
        self._writing = writing or {}
        self._led: dict[Partition, CoordinatorRuntime[Any]] = {}

    def gained(self, partition: Partition, leader_epoch: int) -> None:
        runtime = self._runtimes.get(partition.partition.topic)
        if runtime is not None and partition not in self._led:
            self._led[partition] = runtime
            self._load(partition, runtime)

    def lost(self, partition: Partition, leader_epoch: int) -> None:
        runtime = self._led.pop(partition, None)
        if runtime is not None:
            runtime.lost(partition.partition.partition)

    def _load(self, partition: Partition, runtime: CoordinatorRuntime[Any]) -> None:
        writing = self._writing.get(partition.partition.topic, PLAIN)
        runtime.gained(partition.partition.partition, PartitionLog(partition, self._disk, writing))
        partition.on_resigned(partial(self._ended, partition))

    def _ended(self, partition: Partition, error: LogError) -> None:
        runtime = self._led.get(partition)
        if runtime is None:
            return
        if partition.leads:
            self._load(partition, runtime)
        else:
            self.lost(partition, -1)

    async def close(self) -> None:
        """Ends every waiting request. Called before the partitions are closed."""
        self._led.clear()
        for runtime in self._runtimes.values():
            await runtime.close()
