"""OffsetCommit, key 8, versions 2 to 10: commits a group's offsets. v2 to v4 may carry a retention time. v10 names topics by
id."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from grpc_api.contract.groups import (
    OffsetCommit,
    OffsetsCommitted,
    PartitionCommit,
    PartitionOutcome,
    TopicCommit,
    TopicOutcome,
)
from grpc_api.contract.request_parts import is_long
from kafka_gateway.errors import code_of
from kafka_gateway.group_messages import AT_ONCE, offset_commit_answer, read_offset_commit
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.messages import NO_TOPIC_ID, from_uuid, milliseconds, to_uuid
from kafka_gateway.small_requests import NativeCodec
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    retention = getattr(request, "retention_time", None)
    commit = OffsetCommit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        getattr(request, "group_instance_id", None),
        (),
        -1 if retention is None else milliseconds(retention),
        call.messages.version >= 9,
    )
    if is_long(request.topics, (len(each.partitions) for each in request.topics)):
        return _in_slices(commit, request, call)
    whole = commit._replace(topics=[_topic(each, each.partitions) for each in request.topics])
    return Delayed(call.core.groups.commit_offsets(whole, call.caller), lambda done: _fields(done, call))


async def _in_slices(commit: OffsetCommit, request: Any, call: Call) -> Fields:
    """Commits AT_ONCE partitions at a time and yields to the event loop in between. If a slice is refused, the earlier ones
    stay committed, and the client repeats the whole commit."""
    outcomes = []
    async for asked in call.each(request.topics):
        done: list[PartitionOutcome] = []
        for first in range(0, len(asked.partitions), AT_ONCE):
            part = _topic(asked, asked.partitions[first : first + AT_ONCE])
            answer = await call.core.groups.commit_offsets(commit._replace(topics=[part]), call.caller)
            done += answer.topics[0].partitions
            await call.turn.rest_if_over()
        outcomes.append(TopicOutcome(getattr(asked, "name", ""), done, from_uuid(getattr(asked, "topic_id", None))))
    return _fields(OffsetsCommitted(outcomes), call)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (
            call.make(
                "OffsetCommitResponseTopic",
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", None),
                partitions=(_partition(call, each.partition_index, code) for each in topic.partitions),
            )
            for topic in request.topics
        )
    }


def _topic(asked: Any, partitions: Sequence[Any]) -> TopicCommit:
    commits = [
        PartitionCommit(
            each.partition_index,
            each.committed_offset,
            getattr(each, "committed_leader_epoch", NO_EPOCH),
            each.committed_metadata,
        )
        for each in partitions
    ]
    name = getattr(asked, "name", None)
    if name is not None:
        return TopicCommit(name, commits)
    return TopicCommit("", commits, from_uuid(asked.topic_id) or NO_TOPIC_ID)


def _fields(done: OffsetsCommitted, call: Call) -> Fields:
    return {
        "topics": (
            call.make(
                "OffsetCommitResponseTopic",
                name=topic.topic,
                topic_id=to_uuid(topic.topic_id),
                partitions=(_partition(call, each.partition, code_of(each.error)) for each in topic.partitions),
            )
            for topic in done.topics
        )
    }


def _partition(call: Call, partition: int, code: int) -> Any:
    return call.make("OffsetCommitResponsePartition", partition_index=partition, error_code=code)


def _refusal(commit: OffsetCommit, error: LogError) -> OffsetsCommitted:
    return OffsetsCommitted(
        [
            TopicOutcome(
                topic.topic, [PartitionOutcome(each.partition, error) for each in topic.partitions], topic.topic_id
            )
            for topic in commit.topics
        ]
    )


CODEC = NativeCodec(
    read_offset_commit,
    lambda core, commit, caller: core.groups.commit_offsets(commit, caller),
    _refusal,
    offset_commit_answer,
)
