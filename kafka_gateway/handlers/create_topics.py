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
from storage_tiers.errors import LogError

_ASSIGNED_AND_COUNTED = (
    "A manual partition assignment was specified, but numPartitions or replicationFactor was not set to -1."
)


async def serve(request: Any, call: Call) -> Fields:
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    wanted = [_new_topic(topic) for topic in once if not _counts_and_assigns(topic)]
    created = await call.core.topics.create(wanted, validate_only=bool(request.validate_only)) if wanted else []
    rows = [_result(call, new.name, result) for new, result in zip(wanted, created, strict=True)]
    rows += [
        _refused(call, name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    rows += [
        _refused(call, topic.name, ErrorCode.INVALID_REQUEST, _ASSIGNED_AND_COUNTED)
        for topic in once
        if _counts_and_assigns(topic)
    ]
    return {"topics": tuple(rows)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"topics": tuple(_refused(call, topic.name, code, message) for topic in request.topics)}


def _counts_and_assigns(topic: Any) -> bool:
    return bool(topic.assignments) and (topic.num_partitions != -1 or topic.replication_factor != -1)


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs={config.name: config.value for config in topic.configs},
        assignments={row.partition_index: row.broker_ids for row in topic.assignments},
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
