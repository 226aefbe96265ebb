"""The contract's `Groups` over a channel.

Invariant: a call that the node did not decide ends with CoordinatorNotAvailable, as in the contract, because group members do
not handle the channel's own errors. JoinGroup and SyncGroup have no time limit here, since only the node knows how long the
group's members may take. If the node is gone, the channel's keepalive ends the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

from grpc_api.channel import CALL_TIMEOUT_S, NodeChannel, decided
from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    GroupDeleted,
    GroupsListed,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    ListGroups,
    LowerOffsets,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Synced,
    SyncGroup,
    TxnOffsetCommit,
)
from grpc_api.messages.group_offsets import (
    commit_message,
    delete_offsets_message,
    fetch_offsets_message,
    lower_offsets_message,
    offsets_fetched_of,
    outcomes_of,
    txn_commit_message,
)
from grpc_api.messages.groups import (
    caller_message,
    described_of,
    heartbeat_message,
    join_message,
    joined_of,
    leave_message,
    left_of,
    listed_of,
    maybe_error,
    sync_message,
    synced_of,
)
from grpc_api.proto import groups_pb2 as pb
from grpc_api.proto.groups_pb2_grpc import GroupsStub

Message = TypeVar("Message")


class RemoteGroups:
    """`contract.groups.Groups` over a channel."""

    def __init__(self, node: NodeChannel) -> None:
        self._address = node.address
        self._stub: Any = GroupsStub(node.channel)

    async def coordinator(self, group: str, caller: Caller) -> int:
        asked = pb.CoordinatorRequest(group=group, caller=caller_message(caller))
        return int((await self._decided(self._stub.Coordinator(asked, timeout=CALL_TIMEOUT_S))).node_id)

    # --- members ------------------------------------------------------------------------------------------------------
    def join(self, request: JoinGroup, caller: Caller) -> asyncio.Future[Joined]:
        return asyncio.ensure_future(self._join(request, caller))

    async def _join(self, request: JoinGroup, caller: Caller) -> Joined:
        return joined_of(await self._decided(self._stub.Join(join_message(request, caller))))

    def sync(self, request: SyncGroup, caller: Caller) -> asyncio.Future[Synced]:
        return asyncio.ensure_future(self._sync(request, caller))

    async def _sync(self, request: SyncGroup, caller: Caller) -> Synced:
        return synced_of(await self._decided(self._stub.Sync(sync_message(request, caller))))

    def heartbeat(self, request: Heartbeat, caller: Caller) -> asyncio.Future[HeartbeatAnswer]:
        return asyncio.ensure_future(self._heartbeat(request, caller))

    async def _heartbeat(self, request: Heartbeat, caller: Caller) -> HeartbeatAnswer:
        call = self._stub.Heartbeat(heartbeat_message(request, caller), timeout=CALL_TIMEOUT_S)
        return HeartbeatAnswer(maybe_error(await self._decided(call)))

    def leave(self, request: LeaveGroup, caller: Caller) -> asyncio.Future[Left]:
        return asyncio.ensure_future(self._leave(request, caller))

    async def _leave(self, request: LeaveGroup, caller: Caller) -> Left:
        return left_of(await self._decided(self._stub.Leave(leave_message(request, caller), timeout=CALL_TIMEOUT_S)))

    # --- offsets ------------------------------------------------------------------------------------------------------
    def commit_offsets(self, request: OffsetCommit, caller: Caller) -> asyncio.Future[OffsetsCommitted]:
        return asyncio.ensure_future(self._commit_offsets(request, caller))

    async def _commit_offsets(self, request: OffsetCommit, caller: Caller) -> OffsetsCommitted:
        call = self._stub.CommitOffsets(commit_message(request, caller), timeout=CALL_TIMEOUT_S)
        return OffsetsCommitted(outcomes_of(await self._decided(call)))

    async def commit_offsets_in_transaction(self, request: TxnOffsetCommit, caller: Caller) -> OffsetsCommitted:
        call = self._stub.CommitOffsetsInTransaction(txn_commit_message(request, caller), timeout=CALL_TIMEOUT_S)
        return OffsetsCommitted(outcomes_of(await self._decided(call)))

    def fetch_offsets(self, request: OffsetFetch, caller: Caller) -> asyncio.Future[OffsetsFetched]:
        return asyncio.ensure_future(self._fetch_offsets(request, caller))

    async def _fetch_offsets(self, request: OffsetFetch, caller: Caller) -> OffsetsFetched:
        call = self._stub.FetchOffsets(fetch_offsets_message(request, caller), timeout=CALL_TIMEOUT_S)
        return offsets_fetched_of(await self._decided(call))

    def delete_offsets(self, request: OffsetDelete, caller: Caller) -> asyncio.Future[OffsetsDeleted]:
        return asyncio.ensure_future(self._delete_offsets(request, caller))

    async def _delete_offsets(self, request: OffsetDelete, caller: Caller) -> OffsetsDeleted:
        call = self._stub.DeleteOffsets(delete_offsets_message(request, caller), timeout=CALL_TIMEOUT_S)
        answer = await self._decided(call)
        return OffsetsDeleted(maybe_error(answer), outcomes_of(answer))

    # --- administration -----------------------------------------------------------------------------------------------
    async def list_groups(self, request: ListGroups, caller: Caller) -> GroupsListed:
        wanted = pb.ListGroupsRequest(
            states=sorted(request.states), types=sorted(request.types), caller=caller_message(caller)
        )
        return listed_of(await self._decided(self._stub.List(wanted, timeout=CALL_TIMEOUT_S)))

    def describe_group(self, request: DescribeGroup, caller: Caller) -> asyncio.Future[DescribedGroup]:
        return asyncio.ensure_future(self._describe_group(request, caller))

    async def _describe_group(self, request: DescribeGroup, caller: Caller) -> DescribedGroup:
        wanted = pb.DescribeGroupRequest(group=request.group, caller=caller_message(caller))
        return described_of(await self._decided(self._stub.Describe(wanted, timeout=CALL_TIMEOUT_S)))

    def delete_group(self, request: DeleteGroup, caller: Caller) -> asyncio.Future[GroupDeleted]:
        return asyncio.ensure_future(self._delete_group(request, caller))

    async def _delete_group(self, request: DeleteGroup, caller: Caller) -> GroupDeleted:
        wanted = pb.DeleteGroupRequest(group=request.group, caller=caller_message(caller))
        answer = await self._decided(self._stub.Delete(wanted, timeout=CALL_TIMEOUT_S))
        return GroupDeleted(answer.group, maybe_error(answer))

    async def lower_offsets(self, request: LowerOffsets, caller: Caller) -> Collection[int]:
        call = self._stub.LowerOffsets(lower_offsets_message(request, caller), timeout=CALL_TIMEOUT_S)
        return frozenset((await self._decided(call)).lowered)

    async def _decided(self, call: Awaitable[Message]) -> Message:
        return await decided(call, self._address)
