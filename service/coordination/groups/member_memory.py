"""The memory that members of groups keep on a node: their subscriptions, assignments, and what the broker knows of each.

A member stays for its session after its connection has gone, up to half an hour, with a subscription of any size: its request's
memory is given back long before. So the members of all shards have one bound. Kafka has none, and ends with its heap.

Pure. Invariant: a shard that is dropped gives back what its members kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

from grpc_api.contract.groups import MemberProtocol

#: Bytes that the members and unused member ids of all groups of a node may keep, names included: some hundred thousand members
#: of ordinary subscriptions.
MEMBERS_BYTES = 256 << 20

#: Bytes that a member takes besides its names and protocols, each of its protocols besides its name and subscription, and an id
#: that awaits its member.
MEMBER_BYTES, PROTOCOL_BYTES, PENDING_BYTES = 1_000, 200, 500


def kept_bytes(protocols: Sequence[MemberProtocol], *names: str | None) -> int:
    """Memory of a member with these protocols and names, in bytes. Names have up to 32,767 bytes in a request, and up to four
    times as many in memory; they are kept as a record has them, too."""
    size = MEMBER_BYTES + 2 * sum(map(getsizeof, names))
    return size + sum(PROTOCOL_BYTES + getsizeof(each.name) + len(each.metadata) for each in protocols)


def pending_bytes(member_id: str) -> int:
    """Memory of an id that awaits its member, in bytes."""
    return PENDING_BYTES + getsizeof(member_id)


class ShardMembers:
    """The memory of one shard's members."""

    def __init__(self, memory: MemberMemory) -> None:
        self._memory = memory
        self._used_bytes = 0

    def add(self, more_bytes: int) -> None:
        """Negative for what is given back."""
        self._used_bytes += more_bytes
        self._memory.used_bytes += more_bytes

    def has_room(self, more_bytes: int) -> bool:
        return self._memory.used_bytes + more_bytes <= self._memory.limit_bytes

    def __del__(self) -> None:
        self._memory.used_bytes -= self._used_bytes


class MemberMemory:
    """`used_bytes` is the sum over its shards, kept up to date because each JoinGroup is compared with it."""

    def __init__(self, limit_bytes: int = MEMBERS_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def shard(self) -> ShardMembers:
        """The part of one more shard, as long as that holds it."""
        return ShardMembers(self)
