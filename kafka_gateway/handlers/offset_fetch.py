"""OffsetFetch, key 9, versions 1 to 10: a group's committed offsets. Null (v2) means all topics.

v2 has an error for the whole answer, v7 can refuse offsets of open transactions (KIP-447), v8 can ask for many groups, v10
names topics by id.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from grpc_api.contract.groups import FetchedTopic, OffsetFetch, OffsetsFetched, TopicPartitionIndexes
from grpc_api.contract.request_parts import AT_ONCE
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Delayed, Fields, ended
from kafka_gateway.messages import NO_TOPIC_ID, from_uuid, to_uuid
from storage_tiers.errors import PolicyViolation

#: Most offsets in one answer, over all groups. Each takes a few hundred bytes of memory until it is written.
OFFSETS_A_REQUEST = 1_000_000


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if call.messages.version >= 8:
        return _of_groups(request, call)
    if request.topics is not None and len(request.topics) > AT_ONCE:
        return _of_topics(request, call)
    fetch = OffsetFetch(request.group_id, _wanted(request.topics), getattr(request, "require_stable", False))
    return Delayed(call.core.groups.fetch_offsets(fetch, call.caller), lambda done: _single(request, done, call))


async def _of_topics(request: Any, call: Call) -> Fields:
    return _single(request, await _fetched(request, call, getattr(request, "require_stable", False)), call)


async def _of_groups(request: Any, call: Call) -> Fields:
    """Fetches all offsets of a group once, even if the request repeats it, and makes their rows while they are written.
    Otherwise a request that names a group of thousands of offsets thousands of times would fill the memory."""
    answers: list[OffsetsFetched | Exception] = []
    whole: dict[str, OffsetsFetched | Exception] = {}
    count = 0
    async for each in call.each(request.groups):
        answer = whole.get(each.group_id) if each.topics is None else None
        if answer is None:
            answer = await ended(_fetched(each, call, request.require_stable))
            count += 0 if isinstance(answer, Exception) else sum(len(topic.partitions) for topic in answer.topics)
            if count > OFFSETS_A_REQUEST:
                raise PolicyViolation(f"the groups have more than {OFFSETS_A_REQUEST} offsets; send smaller requests")
            if each.topics is None:
                whole[each.group_id] = answer
        answers.append(answer)
    return {"groups": (_group(each, answer, call) for each, answer in zip(request.groups, answers, strict=True))}


async def _fetched(asked: Any, call: Call, require_stable: bool) -> OffsetsFetched:
    """Reads up to AT_ONCE topics as one snapshot. With more topics, the offsets may come from several moments."""
    groups, group, topics = call.core.groups, asked.group_id, asked.topics
    if topics is None or len(topics) <= AT_ONCE:
        return await groups.fetch_offsets(OffsetFetch(group, _wanted(topics), require_stable), call.caller)
    found: list[FetchedTopic] = []
    for first in range(0, len(topics), AT_ONCE):
        part = OffsetFetch(group, _wanted(topics[first : first + AT_ONCE]), require_stable)
        done = await groups.fetch_offsets(part, call.caller)
        if done.error is not None:
            return done
        found += done.topics
        await call.turn.rest_if_over()
    return OffsetsFetched(None, found)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if call.messages.version >= 8:
        return {"groups": (_failed(call, group, code) for group in request.groups)}
    if call.messages.version >= 2:
        return {"topics": (), "error_code": code}
    return {"topics": _refused(request, code, call)}


def _wanted(topics: Sequence[Any] | None) -> Sequence[TopicPartitionIndexes] | None:
    if topics is None:
        return None
    return [
        TopicPartitionIndexes(topic.name, topic.partition_indexes)
        if hasattr(topic, "name")
        else TopicPartitionIndexes("", topic.partition_indexes, from_uuid(topic.topic_id) or NO_TOPIC_ID)
        for topic in topics
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
        topics=_topics(answer, call, "s"),
        error_code=ErrorCode.NONE,
    )


def _failed(call: Call, group: Any, code: int) -> Any:
    return call.make("OffsetFetchResponseGroup", group_id=group.group_id, topics=(), error_code=code)


def _topics(done: OffsetsFetched, call: Call, plural: str) -> Iterator[Any]:
    """Yields the answer's topics. `plural` is "s" in an answer for many groups, where the schema's classes end in "s"."""
    for topic in done.topics:
        if call.messages.version >= 10 and topic.topic_id is None:
            continue  # the topic is deleted, so it has no id
        yield call.make(
            f"OffsetFetchResponseTopic{plural}",
            name=topic.topic,
            topic_id=to_uuid(topic.topic_id),
            partitions=(
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
        rows = (
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
