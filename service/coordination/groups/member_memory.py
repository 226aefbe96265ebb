"""The memory that groups and their members take on a node, in bytes: names, subscriptions, and the broker's own state.

After its connection is closed, a member stays until its session ends, up to half an hour, with a subscription of any size. A
group stays until its offsets expire, or, without offsets, until the next check for expired offsets.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

from grpc_api.contract.groups import MemberProtocol
from service.coordination.kept_memory import KeptMemory

#: The memory bound of the members and unused member ids of all groups of a node, names included, in bytes: a few hundred
#: thousand members with ordinary subscriptions.
MEMBERS_BYTES = 256 << 20
#: The memory bound of groups without a committed offset, and of long names of all groups, on a node, in bytes: a few tens of
#: thousands of new groups. This is half of the gateway's largest answer, so that all groups can be listed.
GROUPS_BYTES = 128 << 20

#: Bytes of a member without its names and protocols, of a protocol without its name and subscription, of an unused member id,
#: and of a group without its name.
MEMBER_BYTES, PROTOCOL_BYTES, PENDING_BYTES, GROUP_BYTES = 1_000, 200, 500, 2_500
#: Bytes of a group's name that cost nothing while the group has offsets. The bytes beyond them always count.
ORDINARY_NAME_BYTES = 1_000


class GroupMemory(NamedTuple):
    """The bounds that the group shards of a node share: on members, and on groups themselves."""

    members: KeptMemory
    groups: KeptMemory


def node_memory() -> GroupMemory:
    """The memory with the bounds of a node."""
    return GroupMemory(KeptMemory(MEMBERS_BYTES), KeptMemory(GROUPS_BYTES))


def kept_bytes(protocols: Sequence[MemberProtocol], *names: str | None) -> int:
    """Memory of a member with these protocols and names, in bytes. A name has up to 32,767 bytes in a request, and up to four
    times as many in memory. Names count twice, because they are also kept in their encoded form."""
    # Loops take half the time of sums over iterators, and each join of each member calls this several times.
    size = MEMBER_BYTES
    for name in names:
        size += 2 * getsizeof(name)
    for each in protocols:
        size += PROTOCOL_BYTES + getsizeof(each.name) + len(each.metadata)
    return size


def smallest_subscription(protocols: Sequence[MemberProtocol]) -> int:
    """Bytes of the smallest subscription; 0 without protocols."""
    return min([len(each.metadata) for each in protocols]) if protocols else 0


def pending_bytes(member_id: str) -> int:
    """Memory of an unused member id, in bytes."""
    return PENDING_BYTES + getsizeof(member_id)


def group_bytes(group_id: str, *, has_offsets: bool) -> int:
    """Bytes that are counted for a group. As in Kafka, committed offsets are not bounded, so only a long name counts for a
    group with offsets."""
    name = getsizeof(group_id)
    return max(0, name - ORDINARY_NAME_BYTES) if has_offsets else GROUP_BYTES + name
