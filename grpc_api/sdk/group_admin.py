"""Administration of consumer groups: listing, describing and deleting groups, and reading and moving their offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from grpc_api.channel import NodeChannel
from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import (
    NO_GENERATION,
    UNKNOWN_MEMBER,
    DeleteGroup,
    DescribeGroup,
    Groups,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsDeleted,
    TopicOutcome,
    TopicPartitionIndexes,
)
from grpc_api.sdk.consumer_protocol import CONSUMER, decode_assignment
from grpc_api.sdk.membership import topic_commits
from grpc_api.sdk.retries import from_coordinator
from grpc_api.sdk.values import GroupInfo, GroupMemberInfo
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

_CALLER = Caller("User:ANONYMOUS", "tidelog", "")


class _Answer(Protocol):
    @property
    def error(self) -> LogError | None: ...


Answered = TypeVar("Answered", bound=_Answer)


class GroupAdmin:
    """Lists, describes and deletes groups, and reads and moves their offsets. Calls that find the coordinator being created or
    loaded are repeated for up to COORDINATOR_RETRY_S. A refusal raises a LogError."""

    def __init__(self, node: NodeChannel, groups: Groups) -> None:
        self._node = node
        self._groups = groups

    async def list(self) -> Mapping[str, str]:
        """Each group's state."""
        listed = await self._settled(None, lambda: self._groups.list_groups(ListGroups(), _CALLER))
        return {each.group: each.state for each in sorted(listed.groups)}

    async def describe(self, group: str) -> GroupInfo:
        found = await self._settled(group, lambda: self._groups.describe_group(DescribeGroup(group), _CALLER))
        members = [
            GroupMemberInfo(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                decode_assignment(each.assignment) if found.protocol_type == CONSUMER else (),
            )
            for each in found.members
        ]
        return GroupInfo(group, found.state, found.protocol, members)

    async def delete(self, group: str) -> None:
        await self._settled(group, lambda: self._groups.delete_group(DeleteGroup(group), _CALLER))

    async def offsets(self, group: str) -> dict[TopicPartition, int]:
        fetched = await self._settled(group, lambda: self._groups.fetch_offsets(OffsetFetch(group, None), _CALLER))
        return {
            TopicPartition(topic.topic, each.partition): each.offset
            for topic in fetched.topics
            for each in topic.partitions
        }

    async def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int | None]) -> None:
        kept = {partition: offset for partition, offset in offsets.items() if offset is not None}
        if kept:
            commit = OffsetCommit(group, NO_GENERATION, UNKNOWN_MEMBER, None, topic_commits(kept))
            await self._settled(group, lambda: self._committed(commit))
        gone: dict[str, list[int]] = {}
        for partition, offset in offsets.items():
            if offset is None:
                gone.setdefault(partition.topic, []).append(partition.partition)
        if gone:
            delete = OffsetDelete(group, [TopicPartitionIndexes(*each) for each in gone.items()])
            await self._settled(group, lambda: self._deleted(delete))

    async def _committed(self, commit: OffsetCommit) -> OffsetsDeleted:
        done = await self._groups.commit_offsets(commit, _CALLER)
        return OffsetsDeleted(_first_error(done.topics))

    async def _deleted(self, delete: OffsetDelete) -> OffsetsDeleted:
        done = await self._groups.delete_offsets(delete, _CALLER)
        return OffsetsDeleted(done.error or _first_error(done.topics))

    async def _settled(self, group: str | None, ask: Callable[[], Awaitable[Answered]]) -> Answered:
        """Returns the answer or raises its error. Repeats the call while the group's coordinator is created or loaded."""

        async def settled() -> Answered:
            if group is not None:
                await self._groups.coordinator(group, _CALLER)
            answer = await ask()
            if answer.error is not None:
                raise answer.error
            return answer

        return await from_coordinator(self._node, settled)


def _first_error(topics: Sequence[TopicOutcome]) -> LogError | None:
    return next((each.error for topic in topics for each in topic.partitions if each.error is not None), None)
