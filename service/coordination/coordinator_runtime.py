"""The shards of an internal topic on this node, and the partition that keeps a group or a transactional id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Generic

from grpc_api.contract.coordinator_errors import NotCoordinator
from service.coordination.commit_fields import hash_code
from service.coordination.ports import CoordinatorLog
from service.coordination.runtime import ShardHost, State
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff
from storage_tiers.clock import Clock
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition


class CoordinatorRuntime(Generic[State]):
    """The shards of one internal topic that this node coordinates, by partition number."""

    def __init__(
        self,
        topic: str,
        new: Callable[[], State],
        *,
        clock: Clock,
        scheduler: TurnScheduler,
        backoff: Callable[[], Backoff],
        writes: TurnWrites,
        after: Callable[[ShardHost[State]], None] | None = None,
    ) -> None:
        self._topic = topic
        self._after = after
        self._new = new
        self._clock = clock
        self._scheduler = scheduler
        self._backoff = backoff
        self._writes = writes
        self._hosts: dict[int, ShardHost[State]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def hosts(self) -> Mapping[int, ShardHost[State]]:
        return self._hosts

    def gained(self, partition: int, log: CoordinatorLog) -> None:
        """Loads the shard of a partition that this node now leads."""
        self.lost(partition)
        self._hosts[partition] = ShardHost(
            TopicPartition(self._topic, partition),
            log,
            self._new,
            clock=self._clock,
            scheduler=self._scheduler,
            backoff=self._backoff,
            writes=self._writes,
            after=self._after,
        )

    def lost(self, partition: int) -> None:
        """Closes the shard of a partition that this node no longer leads."""
        host = self._hosts.pop(partition, None)
        if host is not None:
            task = asyncio.get_running_loop().create_task(host.close(self._not_coordinator(partition)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def host(self, partition: int) -> ShardHost[State]:
        """The partition's host. Raises NotCoordinator if another node coordinates it."""
        host = self._hosts.get(partition)
        if host is None:
            raise self._not_coordinator(partition)
        return host

    async def close(self) -> None:
        for partition in tuple(self._hosts):
            self.lost(partition)
        if self._closing:
            await asyncio.wait(self._closing)

    def _not_coordinator(self, partition: int) -> NotCoordinator:
        return NotCoordinator(f"this broker does not lead {self._topic}-{partition}; find the coordinator again")


def partition_of(name: str, partitions: int) -> int:
    """The partition that stores a group or a transactional id: the absolute value of Java's `String.hashCode`, modulo the
    number of partitions, as in every version of Kafka."""
    return hash_code(name) % partitions if len(name) > LONGEST_KEPT_NAME else _kept_hash_code(name) % partitions


#: Most names whose hash codes are cached, and the most characters of a cached name. A busy group is looked up at each commit.
KEPT_NAMES, LONGEST_KEPT_NAME = 10_000, 100
_kept_hash_code = lru_cache(KEPT_NAMES)(hash_code)
