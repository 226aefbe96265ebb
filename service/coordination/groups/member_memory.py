"""The memory that groups and their members keep on a node, in bytes: names, subscriptions, and what the broker knows of each.

A member stays for its session after its connection has gone, up to half an hour, with a subscription of any size. A group stays
until its offsets expire, or, if it has none, until the next time that expired offsets are looked for.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

from grpc_api.contract.groups import MemberProtocol
from service.coordination.kept_memory import KeptMemory

#: Bytes that the members and unused member ids of all groups of a node may keep, names included: some hundred thousand members
#: of ordinary subscriptions.
MEMBERS_BYTES = 256 << 20
#: Bytes that groups without a committed offset, and long names of all groups, may keep on a node: some ten thousands of groups
#: that their first members have just made. Half of the largest answer, so that all of them can be listed.
GROUPS_BYTES = 128 << 20

#: Bytes that a member takes besides its names and protocols, each of its protocols besides its name and subscription, an id
#: that awaits its member, and a group besides its name.
MEMBER_BYTES, PROTOCOL_BYTES, PENDING_BYTES, GROUP_BYTES = 1_000, 200, 500, 2_500
#: Longer names of groups count for as long as the group exists.
ORDINARY_NAME_BYTES = 1_000


class GroupMemory(NamedTuple):
    """The bounds that the group shards of a node share: on members, and on groups themselves."""

    members: KeptMemory
    groups: KeptMemory


def node_memory() -> GroupMemory:
    """With the bounds of a node."""
    return GroupMemory(KeptMemory(MEMBERS_BYTES), KeptMemory(GROUPS_BYTES))


def kept_bytes(protocols: Sequence[MemberProtocol], *names: str | None) -> int:
    """Memory of a member with these protocols and names, in bytes. Names have up to 32,767 bytes in a request, and up to four
    times as many in memory; they are kept as a record has them, too."""
    size = MEMBER_BYTES + 2 * sum(map(getsizeof, names))
    return size + sum(PROTOCOL_BYTES + getsizeof(each.name) + len(each.metadata) for each in protocols)


def pending_bytes(member_id: str) -> int:
    """Memory of an id that awaits its member, in bytes."""
    return PENDING_BYTES + getsizeof(member_id)


def group_bytes(group_id: str, *, has_offsets: bool) -> int:
    """Bytes that count for a group. As in Kafka, nothing bounds committed offsets: of a group with offsets only a long name
    counts."""
    name = getsizeof(group_id)
    return max(0, name - ORDINARY_NAME_BYTES) if has_offsets else GROUP_BYTES + name
