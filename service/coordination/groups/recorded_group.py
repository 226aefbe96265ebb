"""Encodes the value of a group's record, whole or in parts, because a group of thousands of members is encoded in steps.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from service.coordination.group_records import GroupMetadata, encode_head, encode_members
from service.coordination.groups.classic_group import ClassicGroup, Member, subscription_of


def group_value(group: ClassicGroup) -> bytes:
    members = list(group.members.values())
    return value_head(group, group.state_timestamp) + value_part(group, members, [each.assignment for each in members])


def value_head(group: ClassicGroup, state_timestamp: int) -> bytes:
    """Encodes the part before the members, with `state_timestamp` as the time of the last change of state."""
    head = GroupMetadata(group.protocol_type or "", group.generation, group.protocol, group.leader, state_timestamp, ())
    return encode_head(head, len(group.members))


def value_part(group: ClassicGroup, members: Sequence[Member], assignments: Sequence[bytes]) -> bytes:
    """Encodes these members with these assignments."""
    protocol = group.protocol
    return encode_members(
        [
            (
                member.names,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                b"" if protocol is None else subscription_of(member.protocols, protocol),
                assignment,
            )
            for member, assignment in zip(members, assignments, strict=True)
        ]
    )
