"""Chooses a record's partition as Java's producer does: by the hash of its key, or, without a key, the partition whose batch is
being filled. Pure.

Java: `BuiltInPartitioner.partitionForKey` and `Utils.murmur2` of Kafka 4.2, KIP-480 and KIP-794 for records without a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpc_api.partitioning.murmur2 import murmur2

if TYPE_CHECKING:
    from storage_tiers.clock import Rng


def partition_of_key(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitioner:
    """Sends a topic's records without a key to one partition until a batch is full, then to another."""

    __slots__ = ("_batch_bytes", "_current", "_filled", "_rng")

    def __init__(self, batch_bytes: int, rng: Rng) -> None:
        self._batch_bytes = batch_bytes
        self._rng = rng
        self._current = -1
        self._filled = 0

    def partition(self, size: int, partitions: int) -> int:
        """The partition of a record of `size` bytes; `partitions` is the topic's current number of partitions."""
        if not 0 <= self._current < partitions or self._filled >= self._batch_bytes:
            self._current = self._another(partitions)
            self._filled = 0
        self._filled += size
        return self._current

    def _another(self, partitions: int) -> int:
        """Chooses any other partition with equal probability."""
        if partitions == 1:
            return 0
        others = partitions - 1 if 0 <= self._current < partitions else partitions
        chosen = min(int(self._rng.uniform(0, others)), others - 1)
        return chosen + 1 if 0 <= self._current <= chosen and others < partitions else chosen
