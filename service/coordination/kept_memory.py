"""Bounds the memory that the shards of a node keep for clients: groups, members and transactional ids.

All of them outlive the requests that created them, so the bound on the memory of requests does not cover them. Members stay for
their session, groups and transactional ids for days. So each kind has one bound for all shards. Kafka has no such bound and
runs out of heap.

Pure. Invariant: a dropped shard releases the memory that it kept.
"""

from __future__ import annotations


class ShardMemory:
    """Counts the bytes that one shard keeps."""

    def __init__(self, memory: KeptMemory) -> None:
        self._memory = memory
        self._used_bytes = 0

    def add(self, more_bytes: int) -> None:
        """Counts bytes that the shard keeps; a negative number counts released bytes."""
        self._used_bytes += more_bytes
        self._memory.used_bytes += more_bytes

    def has_room(self, more_bytes: int) -> bool:
        return self._memory.used_bytes + more_bytes <= self._memory.limit_bytes

    def __del__(self) -> None:
        self._memory.used_bytes -= self._used_bytes


class KeptMemory:
    """`used_bytes` is the sum over all shards. Shards update it at each change, because each request that may add to the sum
    reads it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def shard(self) -> ShardMemory:
        """Returns the counter for a new shard. The counted bytes are released when the shard drops the counter."""
        return ShardMemory(self)
