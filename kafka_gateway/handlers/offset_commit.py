"""OffsetCommit, key 8, versions 2 to 10: a group's positions are kept. v2 to v4 may bring a retention, v10 names
topics by id.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import OffsetCommit, OffsetsCommitted, PartitionCommit, TopicCommit
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.messages import NO_TOPIC_ID, from_uuid, milliseconds, to_uuid
from storage_tiers.types import NO_EPOCH


def serve(request: Any, call: Call) -> Delayed:
    retention = getattr(request, "retention_time", None)
    commit = OffsetCommit(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        getattr(request, "group_instance_id", None),
        [_topic(each) for each in request.topics],
        -1 if retention is None else milliseconds(retention),
    )
    return Delayed(call.core.groups.commit_offsets(commit, call.caller), lambda done: _fields(done, call))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "topics": (
            call.make(
                "OffsetCommitResponseTopic",
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(_partition(call, each.partition_index, code) for each in topic.partitions),
            )
            for topic in request.topics
        )
    }


def _topic(asked: Any) -> TopicCommit:
    commits = [
        PartitionCommit(
            each.partition_index,
            each.committed_offset,
            getattr(each, "committed_leader_epoch", NO_EPOCH),
            each.committed_metadata,
        )
        for each in asked.partitions
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
                partitions=tuple(_partition(call, each.partition, code_of(each.error)) for each in topic.partitions),
            )
            for topic in done.topics
        )
    }


def _partition(call: Call, partition: int, code: int) -> Any:
    return call.make("OffsetCommitResponsePartition", partition_index=partition, error_code=code)
