"""`tidelog.v1.Groups` over the core's contract: unpack, call, pack. Long requests and answers are worked on in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.core import Core
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    OffsetsCommitted,
    PartitionOutcome,
    TopicCommit,
    TopicOutcome,
)
from grpc_api.contract.request_parts import parts_of
from grpc_api.messages.group_offsets import (
    commit_of,
    committed_message,
    delete_offsets_of,
    fetch_offsets_of,
    lower_offsets_of,
    partition_outcome_message,
    txn_commit_of,
)
from grpc_api.messages.groups import (
    caller_of,
    described_member_message,
    described_message,
    heartbeat_of,
    join_of,
    joined_member_message,
    joined_message,
    leaving_member_of,
    left_member_message,
    list_of,
    listed_message,
    maybe_detail,
    sync_of,
    synced_message,
)
from grpc_api.messages.log import check_count
from grpc_api.proto import groups_pb2 as pb
from grpc_api.proto.groups_pb2_grpc import GroupsServicer
from grpc_api.servicers.calls import in_pieces, scheduler
from grpc_api.servicers.connections import host_of

#: Partitions that are committed in one turn of the event loop.
COMMITTED_AT_ONCE = 100


class CoreGroups(GroupsServicer):
    """Consumer groups, for members and administrators. A LogError ends the call with its status and detail."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Coordinator(self, request: pb.CoordinatorRequest, context: Any) -> pb.CoordinatorResponse:  # noqa: N802
        found = await self._core.groups.coordinator(request.group, _caller(request, context))
        return pb.CoordinatorResponse(node_id=found)

    # --- members ------------------------------------------------------------------------------------------------------
    async def Join(self, request: pb.JoinGroupRequest, context: Any) -> pb.JoinGroupResponse:  # noqa: N802
        with context.bounds.joining():
            joined = await self._core.groups.join(join_of(request), _caller(request, context))
        answer = joined_message(joined)
        async for members in in_pieces(joined.members):
            answer.members.extend(map(joined_member_message, members))
        return answer

    async def Sync(self, request: pb.SyncGroupRequest, context: Any) -> pb.SyncGroupResponse:  # noqa: N802
        with context.bounds.joining():
            return synced_message(await self._core.groups.sync(sync_of(request), _caller(request, context)))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:  # noqa: N802
        answer = await self._core.groups.heartbeat(heartbeat_of(request), _caller(request, context))
        return pb.HeartbeatResponse(error=maybe_detail(answer.error))

    async def Leave(self, request: pb.LeaveGroupRequest, context: Any) -> pb.LeaveGroupResponse:  # noqa: N802
        check_count(len(request.members), of="members")
        members: list[LeavingMember] = []
        async for some in in_pieces(request.members):
            members.extend(map(leaving_member_of, some))
        left = await self._core.groups.leave(LeaveGroup(request.group, members), _caller(request, context))
        answer = pb.LeaveGroupResponse(error=maybe_detail(left.error))
        async for outcomes in in_pieces(left.members):
            answer.members.extend(map(left_member_message, outcomes))
        return answer

    # --- offsets ------------------------------------------------------------------------------------------------------
    async def CommitOffsets(self, request: pb.CommitOffsetsRequest, context: Any) -> pb.OffsetOutcomes:  # noqa: N802
        commit, caller = commit_of(request), _caller(request, context)
        return await _committed(
            commit.topics,
            lambda topics: self._core.groups.commit_offsets(commit._replace(topics=topics), caller),
        )

    async def CommitOffsetsInTransaction(  # noqa: N802
        self, request: pb.TxnCommitOffsetsRequest, context: Any
    ) -> pb.OffsetOutcomes:
        commit, caller = txn_commit_of(request), _caller(request, context)
        return await _committed(
            commit.topics,
            lambda topics: self._core.groups.commit_offsets_in_transaction(commit._replace(topics=topics), caller),
        )

    async def FetchOffsets(  # noqa: N802
        self, request: pb.FetchOffsetsRequest, context: Any
    ) -> pb.FetchOffsetsResponse:
        fetched = await self._core.groups.fetch_offsets(fetch_offsets_of(request), _caller(request, context))
        answer = pb.FetchOffsetsResponse(error=maybe_detail(fetched.error))
        async for topics in in_pieces(fetched.topics, 1):
            for topic in topics:
                added = answer.topics.add(topic=topic.topic, topic_id=topic.topic_id)
                async for offsets in in_pieces(topic.partitions):
                    added.partitions.extend(map(committed_message, offsets))
        return answer

    async def DeleteOffsets(self, request: pb.DeleteOffsetsRequest, context: Any) -> pb.OffsetOutcomes:  # noqa: N802
        asked, caller = delete_offsets_of(request), _caller(request, context)
        asked = asked._replace(topics=[topic for topic in asked.topics if topic.partitions])
        outcomes: list[list[PartitionOutcome]] = [[] for _ in asked.topics]
        for part in parts_of((topic, topic.partitions) for topic in asked.topics) if asked.topics else ([],):
            topics = [each.topic._replace(partitions=each.partitions) for each in part]
            done = await self._core.groups.delete_offsets(OffsetDelete(asked.group, topics), caller)
            if done.error is not None:
                return pb.OffsetOutcomes(error=maybe_detail(done.error))
            for each, outcome in zip(part, done.topics, strict=True):
                outcomes[each.at] += outcome.partitions
            await scheduler().rest()
        answer = pb.OffsetOutcomes()
        rows = zip(asked.topics, outcomes, strict=True)
        await _add_outcomes(answer, [TopicOutcome(topic.topic, done, topic.topic_id) for topic, done in rows])
        return answer

    async def LowerOffsets(  # noqa: N802
        self, request: pb.LowerOffsetsRequest, context: Any
    ) -> pb.LowerOffsetsResponse:
        with context.bounds.lowering():
            lowered = await self._core.groups.lower_offsets(lower_offsets_of(request), _caller(request, context))
        return pb.LowerOffsetsResponse(lowered=sorted(lowered))

    # --- administration -----------------------------------------------------------------------------------------------
    async def List(self, request: pb.ListGroupsRequest, context: Any) -> pb.ListGroupsResponse:  # noqa: N802
        listed = await self._core.groups.list_groups(list_of(request), _caller(request, context))
        answer = pb.ListGroupsResponse(error=maybe_detail(listed.error))
        async for groups in in_pieces(listed.groups):
            answer.groups.extend(map(listed_message, groups))
        return answer

    async def Describe(self, request: pb.DescribeGroupRequest, context: Any) -> pb.DescribeGroupResponse:  # noqa: N802
        described = await self._core.groups.describe_group(DescribeGroup(request.group), _caller(request, context))
        answer = described_message(described)
        async for members in in_pieces(described.members):
            answer.members.extend(map(described_member_message, members))
        return answer

    async def Delete(self, request: pb.DeleteGroupRequest, context: Any) -> pb.DeleteGroupResponse:  # noqa: N802
        done = await self._core.groups.delete_group(DeleteGroup(request.group), _caller(request, context))
        return pb.DeleteGroupResponse(group=done.group, error=maybe_detail(done.error))


def _caller(request: Any, context: Any) -> Caller:
    return caller_of(request.caller, host_of(context.peer_name))


async def _committed(
    topics: Sequence[TopicCommit], commit: Callable[[Sequence[TopicCommit]], Awaitable[OffsetsCommitted]]
) -> pb.OffsetOutcomes:
    """Commits COMMITTED_AT_ONCE partitions at a time and yields the event loop in between. If a part is refused, the earlier
    ones stay committed, and the caller repeats the whole commit."""
    answer = pb.OffsetOutcomes()
    if len(topics) <= COMMITTED_AT_ONCE and sum(len(topic.partitions) for topic in topics) <= COMMITTED_AT_ONCE:
        await _add_outcomes(answer, (await commit(topics)).topics)
        return answer
    for number, topic in enumerate(topics):
        if number and not number % COMMITTED_AT_ONCE:
            await scheduler().rest()
        done: list[PartitionOutcome] = []
        for first in range(0, len(topic.partitions), COMMITTED_AT_ONCE):
            part = topic._replace(partitions=topic.partitions[first : first + COMMITTED_AT_ONCE])
            done += (await commit([part])).topics[0].partitions
            await scheduler().rest()
        await _add_outcomes(answer, [TopicOutcome(topic.topic, done, topic.topic_id)])
    return answer


async def _add_outcomes(answer: pb.OffsetOutcomes, topics: Sequence[TopicOutcome]) -> None:
    async for some in in_pieces(topics):
        for topic in some:
            added = answer.topics.add(topic=topic.topic, topic_id=topic.topic_id)
            async for outcomes in in_pieces(topic.partitions):
                added.partitions.extend(map(partition_outcome_message, outcomes))
