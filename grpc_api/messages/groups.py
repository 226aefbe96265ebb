"""Consumer groups and their members as messages. `*_message` encode the contract's values, `*_of` decode.

An answer's error travels as its ErrorDetail. `group_offsets.py` has the messages of committed offsets.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    DescribedGroup,
    DescribedMember,
    GroupsListed,
    Heartbeat,
    Joined,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Left,
    LeftMember,
    ListedGroup,
    ListGroups,
    MemberProtocol,
    Synced,
    SyncGroup,
)
from grpc_api.messages.errors import detail_of, error_of
from grpc_api.messages.log import check_count
from grpc_api.proto import errors_pb2
from grpc_api.proto import groups_pb2 as pb
from storage_tiers.errors import LogError

#: The principal of every caller: gRPC's connections are not authenticated.
ANONYMOUS = "User:ANONYMOUS"


def maybe(message: Any, field: str) -> Any:
    """The value of an optional field, None where it is unset."""
    return getattr(message, field) if message.HasField(field) else None


def maybe_detail(error: LogError | None) -> errors_pb2.ErrorDetail | None:
    return None if error is None else detail_of(error)


def maybe_error(message: Any) -> LogError | None:
    """The error in the field `error` of an answer or of a part of it; None if the field is unset."""
    return error_of(message.error) if message.HasField("error") else None


def caller_message(caller: Caller) -> pb.GroupCaller:
    return pb.GroupCaller(client_id=caller.client_id, host=caller.host or None)


def caller_of(message: pb.GroupCaller, address: str) -> Caller:
    """The caller of a request; `address` is the host of its connection, used if the message names none."""
    return Caller(ANONYMOUS, message.client_id, message.host if message.HasField("host") else f"/{address}")


# --- joining ----------------------------------------------------------------------------------------------------------
def join_message(join: JoinGroup, caller: Caller) -> pb.JoinGroupRequest:
    return pb.JoinGroupRequest(
        group=join.group,
        member_id=join.member_id,
        group_instance_id=join.group_instance_id,
        protocol_type=join.protocol_type,
        protocols=[pb.MemberProtocol(name=each.name, metadata=each.metadata) for each in join.protocols],
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        needs_member_id=join.needs_member_id,
        may_skip_assignment=join.may_skip_assignment,
        reason=join.reason,
        caller=caller_message(caller),
    )


def join_of(message: pb.JoinGroupRequest) -> JoinGroup:
    check_count(len(message.protocols), of="assignors")
    return JoinGroup(
        message.group,
        message.member_id,
        maybe(message, "group_instance_id"),
        message.protocol_type,
        [MemberProtocol(each.name, each.metadata) for each in message.protocols],
        message.session_timeout_ms,
        message.rebalance_timeout_ms,
        message.needs_member_id,
        message.may_skip_assignment,
        maybe(message, "reason"),
    )


def joined_member_message(member: JoinedMember) -> pb.JoinedMember:
    return pb.JoinedMember(
        member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
    )


def joined_message(joined: Joined) -> pb.JoinGroupResponse:
    """The answer without its members."""
    return pb.JoinGroupResponse(
        error=maybe_detail(joined.error),
        member_id=joined.member_id,
        generation=joined.generation,
        protocol_type=joined.protocol_type,
        protocol=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
    )


def joined_of(message: pb.JoinGroupResponse) -> Joined:
    return Joined(
        maybe_error(message),
        message.member_id,
        message.generation,
        maybe(message, "protocol_type"),
        maybe(message, "protocol"),
        message.leader,
        [JoinedMember(each.member_id, maybe(each, "group_instance_id"), each.metadata) for each in message.members],
        message.skip_assignment,
    )


# --- membership -------------------------------------------------------------------------------------------------------
def sync_message(sync: SyncGroup, caller: Caller) -> pb.SyncGroupRequest:
    return pb.SyncGroupRequest(
        group=sync.group,
        generation=sync.generation,
        member_id=sync.member_id,
        group_instance_id=sync.group_instance_id,
        assignments=[pb.MemberAssignment(member_id=member, assignment=data) for member, data in sync.assignments],
        protocol_type=sync.protocol_type,
        protocol=sync.protocol,
        caller=caller_message(caller),
    )


def sync_of(message: pb.SyncGroupRequest) -> SyncGroup:
    check_count(len(message.assignments), of="members")
    return SyncGroup(
        message.group,
        message.generation,
        message.member_id,
        maybe(message, "group_instance_id"),
        [(each.member_id, each.assignment) for each in message.assignments],
        maybe(message, "protocol_type"),
        maybe(message, "protocol"),
    )


def synced_message(synced: Synced) -> pb.SyncGroupResponse:
    return pb.SyncGroupResponse(
        error=maybe_detail(synced.error),
        protocol_type=synced.protocol_type,
        protocol=synced.protocol,
        assignment=synced.assignment,
    )


def synced_of(message: pb.SyncGroupResponse) -> Synced:
    return Synced(maybe_error(message), maybe(message, "protocol_type"), maybe(message, "protocol"), message.assignment)


def heartbeat_message(heartbeat: Heartbeat, caller: Caller) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        group=heartbeat.group,
        generation=heartbeat.generation,
        member_id=heartbeat.member_id,
        group_instance_id=heartbeat.group_instance_id,
        caller=caller_message(caller),
    )


def heartbeat_of(message: pb.HeartbeatRequest) -> Heartbeat:
    return Heartbeat(message.group, message.generation, message.member_id, maybe(message, "group_instance_id"))


def leave_message(leave: LeaveGroup, caller: Caller) -> pb.LeaveGroupRequest:
    return pb.LeaveGroupRequest(
        group=leave.group,
        members=[
            pb.LeavingMember(member_id=each.member_id, group_instance_id=each.group_instance_id, reason=each.reason)
            for each in leave.members
        ],
        caller=caller_message(caller),
    )


def leaving_member_of(message: pb.LeavingMember) -> LeavingMember:
    return LeavingMember(message.member_id, maybe(message, "group_instance_id"), maybe(message, "reason"))


def left_member_message(member: LeftMember) -> pb.LeftMember:
    return pb.LeftMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        error=maybe_detail(member.error),
    )


def left_of(message: pb.LeaveGroupResponse) -> Left:
    members = [
        LeftMember(each.member_id, maybe(each, "group_instance_id"), maybe_error(each)) for each in message.members
    ]
    return Left(maybe_error(message), members)


# --- administration ---------------------------------------------------------------------------------------------------
def list_of(message: pb.ListGroupsRequest) -> ListGroups:
    check_count(len(message.states) + len(message.types), of="states and types")
    return ListGroups(frozenset(message.states), frozenset(message.types))


def listed_message(group: ListedGroup) -> pb.ListedGroup:
    return pb.ListedGroup(group=group.group, protocol_type=group.protocol_type, state=group.state, type=group.type)


def listed_of(message: pb.ListGroupsResponse) -> GroupsListed:
    groups = [ListedGroup(each.group, each.protocol_type, each.state, each.type) for each in message.groups]
    return GroupsListed(maybe_error(message), groups)


def described_member_message(member: DescribedMember) -> pb.DescribedMember:
    return pb.DescribedMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=member.metadata,
        assignment=member.assignment,
    )


def described_message(group: DescribedGroup) -> pb.DescribeGroupResponse:
    """The answer without its members."""
    return pb.DescribeGroupResponse(
        error=maybe_detail(group.error),
        group=group.group,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
    )


def described_of(message: pb.DescribeGroupResponse) -> DescribedGroup:
    members = [
        DescribedMember(
            each.member_id,
            maybe(each, "group_instance_id"),
            each.client_id,
            each.client_host,
            each.metadata,
            each.assignment,
        )
        for each in message.members
    ]
    return DescribedGroup(
        maybe_error(message), message.group, message.state, message.protocol_type, message.protocol, members
    )
