"""OffsetFetch, key 9, versions 1 to 10: a group's committed positions. Null topics (v2) mean all.

v2 has an error for the whole answer, v7 can refuse offsets of open transactions (KIP-447), v8 asks for many groups at once, v10
names topics by id.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from grpc_api.contract.groups import OffsetFetch, OffsetsFetched, TopicPartitionIndexes
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Delayed, Fields, ended
from kafka_gateway.messages import NO_TOPIC_ID, from_uuid, to_uuid


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if call.messages.version >= 8:
        return _of_groups(request, call)
    require_stable = getattr(request, "require_stable", False)
    answer = call.core.groups.fetch_offsets(
        OffsetFetch(request.group_id, _wanted(request), require_stable), call.caller
    )
    return Delayed(answer, lambda done: _single(request, done, call))


async def _of_groups(request: Any, call: Call) -> Fields:
    groups, require_stable = call.core.groups, request.require_stable
    rows = [
        _group(
            each,
            await ended(groups.fetch_offsets(OffsetFetch(each.group_id, _wanted(each), require_stable), call.caller)),
            call,
        )
        async for each in call.each(request.groups)
    ]
    return {"groups": rows}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if call.messages.version >= 8:
        return {"groups": (_failed(call, group, code) for group in request.groups)}
    if call.messages.version >= 2:
        return {"topics": (), "error_code": code}
    return {"topics": _refused(request, code, call)}


def _wanted(asked: Any) -> Sequence[TopicPartitionIndexes] | None:
    if asked.topics is None:
        return None
    return [
        TopicPartitionIndexes(topic.name, topic.partition_indexes)
        if hasattr(topic, "name")
        else TopicPartitionIndexes("", topic.partition_indexes, from_uuid(topic.topic_id) or NO_TOPIC_ID)
        for topic in asked.topics
    ]


def _single(request: Any, done: OffsetsFetched, call: Call) -> Fields:
    code = code_of(done.error)
    if code and call.messages.version < 2:
        return {"topics": _refused(request, code, call)}
    return {"topics": _topics(done, call, ""), "error_code": code}


def _group(asked: Any, answer: OffsetsFetched | Exception, call: Call) -> Any:
    error = answer if isinstance(answer, Exception) else answer.error
    if error is not None or isinstance(answer, Exception):
        return _failed(call, asked, code_of(error))
    return call.make(
        "OffsetFetchResponseGroup",
        group_id=asked.group_id,
        topics=tuple(_topics(answer, call, "s")),
        error_code=ErrorCode.NONE,
    )


def _failed(call: Call, group: Any, code: int) -> Any:
    return call.make("OffsetFetchResponseGroup", group_id=group.group_id, topics=(), error_code=code)


def _topics(done: OffsetsFetched, call: Call, plural: str) -> Iterator[Any]:
    """`plural`: the schema's classes for many groups end in "s"."""
    for topic in done.topics:
        if call.messages.version >= 10 and topic.topic_id is None:
            continue  # the topic is gone, and has no id to be named by
        yield call.make(
            f"OffsetFetchResponseTopic{plural}",
            name=topic.topic,
            topic_id=to_uuid(topic.topic_id),
            partitions=tuple(
                call.make(
                    f"OffsetFetchResponsePartition{plural}",
                    partition_index=each.partition,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    error_code=code_of(each.error),
                )
                for each in topic.partitions
            ),
        )


def _refused(request: Any, code: int, call: Call) -> Iterator[Any]:
    for topic in request.topics or ():
        rows = tuple(
            call.make(
                "OffsetFetchResponsePartition",
                partition_index=number,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            )
            for number in topic.partition_indexes
        )
        yield call.make("OffsetFetchResponseTopic", name=topic.name, partitions=rows)
