"""The memory that members of groups keep on a node: their subscriptions, and what the broker knows of each.

A member stays for its session after its connection has gone, up to half an hour, with a subscription of any size: its request's
memory is given back long before. So the members of all shards have one bound. Kafka has none, and ends with its heap.

Pure. Invariant: a shard that is dropped gives back what its members kept.
"""

from __future__ import annotations

from weakref import WeakSet

#: Bytes that the members of all groups of a node may keep: some hundred thousand members of ordinary subscriptions.
MEMBERS_BYTES = 256 << 20


class ShardMembers:
    """What the members of one shard keep. `used_bytes` is kept by the shard."""

    def __init__(self, memory: MemberMemory) -> None:
        self.used_bytes = 0
        self._memory = memory

    def has_room(self, more_bytes: int) -> bool:
        return self._memory.used_bytes + more_bytes <= self._memory.limit_bytes


class MemberMemory:
    def __init__(self, limit_bytes: int = MEMBERS_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._shards: WeakSet[ShardMembers] = WeakSet()

    @property
    def used_bytes(self) -> int:
        return sum(shard.used_bytes for shard in self._shards)

    def shard(self) -> ShardMembers:
        """The part of one more shard, as long as that holds it."""
        made = ShardMembers(self)
        self._shards.add(made)
        return made
