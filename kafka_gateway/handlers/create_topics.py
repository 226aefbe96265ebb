"""CreateTopics, key 19, versions 2 to 7.

v5 answers with what was created (partitions, replication, configs), v7 with its id. A name that stands twice in a request
is refused with INVALID_REQUEST, as Kafka does.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from grpc_api.contract.topics import ConfigEntry, CreatedTopic, NewTopic
from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import InvalidReplicaAssignment, LogError


async def serve(request: Any, call: Call) -> Fields:
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    repeats = {topic.name: index for topic in once if (index := _assigned_twice(topic)) is not None}
    validate_only = bool(request.validate_only)
    good = [_new_topic(topic) for topic in once if topic.name not in repeats]
    created = await call.core.topics.create(good, validate_only=validate_only) if good else []
    rows = [_result(call, new.name, result) for new, result in zip(good, created, strict=True)]
    # Everything else that is wrong with them comes first.
    bad = [_new_topic(topic) for topic in once if topic.name in repeats]
    checked = await call.core.topics.create(bad, validate_only=True) if bad else []
    for new, result in zip(bad, checked, strict=True):
        problem = f"Found multiple manual partition assignments for partition {repeats[new.name]}"
        rows.append(
            _result(call, new.name, result if isinstance(result, LogError) else InvalidReplicaAssignment(problem))
        )
    rows += [
        _refused(call, name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    return {"topics": tuple(rows)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"topics": tuple(_refused(call, topic.name, code, message) for topic in request.topics)}


def _assigned_twice(topic: Any) -> int | None:
    """The first partition that the assignment names again."""
    seen: set[int] = set()
    for row in topic.assignments:
        if row.partition_index in seen:
            return int(row.partition_index)
        seen.add(row.partition_index)
    return None


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs={config.name: config.value for config in topic.configs},
        assignments={row.partition_index: row.broker_ids for row in reversed(topic.assignments)},
    )


def _refused(call: Call, name: str, code: int, message: str | None) -> Any:
    return call.make(
        "CreatableTopicResult", name=name, topic_id=None, error_code=code, error_message=message, configs=()
    )


def _result(call: Call, name: str, result: CreatedTopic | LogError) -> Any:
    if isinstance(result, LogError):
        return _refused(call, name, code_of(result), message_of(result))
    return call.make(
        "CreatableTopicResult",
        name=name,
        topic_id=to_uuid(result.topic_id),
        error_code=0,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=tuple(_config(call, entry) for entry in result.configs) if call.messages.version >= 5 else None,
    )


def _config(call: Call, entry: ConfigEntry) -> Any:
    return call.make(
        "CreatableTopicConfigs",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
    )
