"""CreateTopics, key 19, versions 2 to 7.

v5 answers with the created partitions, replication factor and configs, v7 also with the topic id. A duplicate name is
refused with INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from grpc_api.contract.topics import ConfigEntry, CreatedTopic, NewTopic
from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.message_writer import Encoded
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import InvalidReplicaAssignment, LogError


async def serve(request: Any, call: Call) -> Fields:
    times = Counter([topic.name async for topic in call.each(request.topics)])
    validate_only = bool(request.validate_only)
    configs = _Configs(call)
    rows, bad = [], []
    async for topic in call.each(request.topics):
        if times[topic.name] > 1:
            continue
        repeated = _assigned_twice(topic)
        (result,) = await call.core.topics.create(
            [_new_topic(topic)], validate_only=validate_only or repeated is not None
        )
        if repeated is None:
            rows.append(_result(call, topic.name, result, configs))
            continue
        # Any other problem of the topic takes precedence.
        problem = InvalidReplicaAssignment(f"Found multiple manual partition assignments for partition {repeated}")
        bad.append(_result(call, topic.name, result if isinstance(result, LogError) else problem, configs))
    refused = (
        _refused(call, name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    )
    return {"topics": itertools.chain(rows, bad, refused)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"topics": (_refused(call, topic.name, code, message) for topic in request.topics)}


def _assigned_twice(topic: Any) -> int | None:
    """The first partition that the assignment names twice."""
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


class _Configs:
    """Encodes the configs of new topics for the answer. Successive topics with the same configs, the common case, share one
    encoding."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._of: Sequence[ConfigEntry] | None = None
        self._encoded: Encoded | None = None

    def encoded(self, entries: Sequence[ConfigEntry]) -> Encoded:
        if self._encoded is None or self._of is not entries:
            self._of = entries
            self._encoded = self._call.messages.encoded(_config(self._call, entry) for entry in entries)
        return self._encoded


def _result(call: Call, name: str, result: CreatedTopic | LogError, configs: _Configs) -> Any:
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
        configs=configs.encoded(result.configs) if call.messages.version >= 5 else None,
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
