"""ListOffsets, key 2, versions 1 to 11.

Newer versions add special timestamps: 7 adds -3 (maximum timestamp), 8 adds -4 (earliest local), 9 adds -5 (latest tiered), 11
adds -6 (earliest pending upload). In an older version, a special timestamp gets UNSUPPORTED_VERSION. Any other negative number
gets this error in every version. v10 adds a timeout for lookups in the bucket. A duplicate partition is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from grpc_api.contract.log import Isolation, OffsetQuery, OffsetSpec
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import milliseconds
from storage_tiers.errors import InvalidRequest, LogError, RequestTimedOut, UnsupportedVersion
from storage_tiers.types import NO_EPOCH, TimestampOffset, TopicPartition

#: The first version that has each special timestamp.
SINCE: dict[int, int] = {
    OffsetSpec.LATEST: 1,
    OffsetSpec.EARLIEST: 1,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}

#: Most partitions of one lookup.
GROUP = 32

Answer = TimestampOffset | LogError | None


async def serve(request: Any, call: Call) -> Fields:
    isolation = getattr(request, "isolation_level", 0)
    if isolation not in (0, 1):
        raise InvalidRequest(f"isolation {isolation} does not exist; it must be 0 (uncommitted) or 1 (committed)")
    times: Counter[tuple[str, int]] = Counter()
    async for topic in call.each(request.topics):
        async for row in call.each(topic.partitions):
            times[topic.name, row.partition_index] += 1
    queries: list[OffsetQuery] = []
    answers: dict[tuple[str, int], Answer] = {}
    async for topic in call.each(request.topics):
        async for row in call.each(topic.partitions):
            key = (topic.name, row.partition_index)
            refused = _refusal(row.timestamp, call.messages.version, times[key])
            if refused is not None:
                answers[key] = refused
                continue
            epoch = getattr(row, "current_leader_epoch", NO_EPOCH)
            queries.append(OffsetQuery(TopicPartition(*key), row.timestamp, epoch, Isolation(isolation)))
    if queries:
        await _look_up(queries, request, call, answers)
    return {"topics": (_topic(call, topic, answers) for topic in request.topics)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    topics = (
        call.make(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=(
                call.make("ListOffsetsPartitionResponse", partition_index=row.partition_index, error_code=code)
                for row in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return {"topics": topics}


def _refusal(timestamp: int, version: int, times: int) -> LogError | None:
    if times > 1:
        return InvalidRequest("the request names the partition more than once")
    if timestamp < 0 and (timestamp not in SINCE or SINCE[timestamp] > version):
        return UnsupportedVersion(f"the special timestamp {timestamp} is not known in version {version}")
    return None


async def _look_up(
    queries: list[OffsetQuery], request: Any, call: Call, answers: dict[tuple[str, int], Answer]
) -> None:
    """Adds the offsets to `answers`. Looks up groups of partitions concurrently, because each group may read from the bucket,
    and the request's timeout covers all of them."""
    timeout = getattr(request, "timeout", None)
    seconds = None if timeout is None or not milliseconds(timeout) else max(0, milliseconds(timeout)) / 1000

    async def group(queries: list[OffsetQuery]) -> None:
        found = await call.core.log.list_offsets(queries)
        answers.update(zip((query.partition for query in queries), found, strict=True))

    groups = (queries[at : at + GROUP] for at in range(0, len(queries), GROUP))
    try:
        async with asyncio.timeout(seconds):
            if len(queries) <= GROUP:
                # This needs no task, so that lookups without a wait succeed even with the shortest timeout.
                await group(queries)
            else:
                await call.together(group(each) for each in groups)
    except TimeoutError:
        late = RequestTimedOut("not found within the request's timeout; retry")
        async for query in call.each(queries):
            answers.setdefault(query.partition, late)


def _topic(call: Call, topic: Any, answers: dict[tuple[str, int], Answer]) -> Any:
    indexes = dict.fromkeys(row.partition_index for row in topic.partitions)
    rows = (_partition(call, index, answers[topic.name, index]) for index in indexes)
    return call.make("ListOffsetsTopicResponse", name=topic.name, partitions=rows)


def _partition(call: Call, index: int, answer: Answer) -> Any:
    kind = "ListOffsetsPartitionResponse"
    if isinstance(answer, LogError):
        code = code_of(answer)
        if (
            code == ErrorCode.OFFSET_NOT_AVAILABLE and call.messages.version < 5
        ):  # as in Kafka, because older clients do not know it
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return call.make(kind, partition_index=index, error_code=code)
    if answer is None:
        return call.make(kind, partition_index=index, error_code=0)
    return call.make(
        kind,
        partition_index=index,
        error_code=0,
        timestamp=answer.timestamp,
        offset=answer.offset,
        leader_epoch=answer.leader_epoch,
    )
