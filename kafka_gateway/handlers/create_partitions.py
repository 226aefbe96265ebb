"""CreatePartitions, key 37, versions 0 to 3. A duplicate topic is refused, as in Kafka."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError, UnknownTopicOrPartition


async def serve(request: Any, call: Call) -> Fields:
    times = Counter([topic.name async for topic in call.each(request.topics)])
    rows = [
        _row(call, name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    validate_only = bool(request.validate_only)
    rows += [
        await _create(topic, call, validate_only=validate_only)
        async for topic in call.each(request.topics)
        if times[topic.name] == 1
    ]
    return {"results": rows}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"results": (_row(call, topic.name, code, message) for topic in request.topics)}


async def _create(topic: Any, call: Call, *, validate_only: bool) -> Any:
    assignments = None if topic.assignments is None else [list(row.broker_ids) for row in topic.assignments]
    try:
        await call.core.topics.create_partitions(topic.name, topic.count, assignments, validate_only=validate_only)
    except UnknownTopicOrPartition as error:
        return _row(call, topic.name, code_of(error), None)
    except LogError as error:
        return _row(call, topic.name, code_of(error), message_of(error))
    return _row(call, topic.name, 0, None)


def _row(call: Call, name: str, code: int, message: str | None) -> Any:
    return call.make("CreatePartitionsTopicResult", name=name, error_code=code, error_message=message)
