"""DeleteTopics, key 20, versions 1 to 6: by name, or (v6) by name or id, never both. v5 has an error message.

The request is answered when the deletion is durable in the metadata; bytes are deleted later. A duplicate topic is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import LogError
from storage_tiers.types import TopicId

#: A topic by name or by id.
Wanted = tuple[str | None, TopicId | None]


async def serve(request: Any, call: Call) -> Fields:
    wanted = Counter([each async for each in call.each(_wanted(request))])
    rows = []
    good: list[Wanted] = []
    async for (name, topic_id), times in call.each(wanted.items()):
        if times > 1:
            what = "name" if name is not None else "id"
            rows.append(_row(call, name, topic_id, ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}."))
        elif (name is None) == (topic_id is None):
            problem = "You may not specify both topic name and topic id."
            if name is None:
                problem = "Neither topic name nor id were specified."
            rows.append(_row(call, name, topic_id, ErrorCode.INVALID_REQUEST, problem))
        else:
            good.append((name, topic_id))
    # As in Kafka, topics by name come first.
    good.sort(key=lambda each: each[0] is None)
    async for name, topic_id in call.each(good):
        names, ids = ([name] if name is not None else []), ([topic_id] if topic_id is not None else [])
        (result,) = await call.core.topics.delete(names, ids)
        if isinstance(result, LogError):
            rows.append(_row(call, name, topic_id, code_of(result), message_of(result)))
        else:
            rows.append(_row(call, result[0], result[1], 0, None))
    return {"responses": rows}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"responses": (_row(call, name, topic_id, code, message) for name, topic_id in _wanted(request))}


def _wanted(request: Any) -> Iterable[Wanted]:
    if hasattr(request, "topic_names"):
        return ((name, None) for name in request.topic_names)
    return ((topic.name, None if topic.topic_id is None else TopicId(topic.topic_id.bytes)) for topic in request.topics)


def _row(call: Call, name: str | None, topic_id: TopicId | None, code: int, message: str | None) -> Any:
    return call.make(
        "DeletableTopicResult", name=name, topic_id=to_uuid(topic_id), error_code=code, error_message=message
    )
