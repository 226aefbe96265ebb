"""Metadata, key 3, versions 0 to 13: brokers, topics, and the leaders of their partitions.

Topics are requested by name or (v12) by id. Null requests all topics; in v0 an empty list does. Unknown topics are created
first if `auto.create.topics.enable` and the request (v4) allow it. v13 can carry an error for the whole answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import from_uuid, to_uuid
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicId

#: Authorized operations in an answer: NOT_ASKED if they were not requested, otherwise all of them, because the node has no
#: authorizer. There is one bit per AclOperation that applies to a topic or to the cluster.
NOT_ASKED = -2147483648
ALL_TOPIC_OPERATIONS = 3576
ALL_CLUSTER_OPERATIONS = 8096


async def serve(request: Any, call: Call) -> Fields:
    topics = call.core.topics
    version = call.messages.version
    if request.topics is None or (version == 0 and not request.topics):
        everything = topics.describe()
        return _fields(request, call, (_known(request, call, t) for t in everything if isinstance(t, TopicDescription)))
    names, ids = await _wanted(request, call)
    created = set()
    if getattr(request, "allow_auto_topic_creation", True):
        async for name in call.each(names):
            if isinstance(topics.describe([name])[0], UnknownTopicOrPartition):
                await topics.auto_create([name])
                created.add(name)
    return _fields(request, call, _rows(request, call, names, ids, created))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    rows = (
        _unknown(request, call, topic.name or "", from_uuid(getattr(topic, "topic_id", None)), code)
        for topic in request.topics or ()
    )
    nothing = {"brokers": (), "cluster_id": None, "controller_id": -1, "cluster_authorized_operations": NOT_ASKED}
    return {"error_code": code, "topics": rows, **nothing}


def _rows(request: Any, call: Call, names: Sequence[str], ids: Sequence[TopicId], created: Set[str]) -> Iterator[Any]:
    """The rows of the answer. As in Kafka, topics that were just `created` are still unknown in it; clients retry."""
    asked: Iterator[tuple[str | None, TopicId | None]] = itertools.chain(
        ((name, None) for name in names), ((None, topic_id) for topic_id in ids)
    )
    for name, topic_id in asked:
        (topic,) = call.core.topics.describe([] if name is None else [name], [] if topic_id is None else [topic_id])
        if isinstance(topic, LogError):
            yield _unknown(request, call, name, topic_id, code_of(topic))
        elif topic.name in created:
            yield _unknown(request, call, name, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            yield _known(request, call, topic)


async def _wanted(request: Any, call: Call) -> tuple[list[str], list[TopicId]]:
    """Returns the names and the ids without duplicates, in order. If any topic has an id, all names are ignored. Raises
    InvalidRequest."""
    names: dict[str, None] = {}
    ids: dict[TopicId, None] = {}
    async for topic in call.each(request.topics):
        topic_id = getattr(topic, "topic_id", None)
        if topic_id is not None and call.messages.version < 12:
            raise InvalidRequest(f"Metadata {call.messages.version} does not support topic ids; use version 12")
        if topic_id is not None:
            ids[TopicId(topic_id.bytes)] = None
        elif topic.name is not None:
            names[topic.name] = None
        else:
            raise InvalidRequest("a topic needs a name or an id")
    return ([], list(ids)) if ids else (list(names), [])


def _fields(request: Any, call: Call, rows: Iterable[Any]) -> Fields:
    cluster = call.core.topics.cluster()
    brokers = tuple(
        call.make("MetadataResponseBroker", node_id=b.node_id, host=at.host, port=at.port, rack=b.rack)
        for b, at in call.reachable(cluster)
    )
    asked = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "error_code": 0,
        "brokers": brokers,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS if asked else NOT_ASKED,
        "topics": rows,
    }


def _operations(request: Any) -> int:
    return ALL_TOPIC_OPERATIONS if getattr(request, "include_topic_authorized_operations", False) else NOT_ASKED


def _unknown(request: Any, call: Call, name: str | None, topic_id: TopicId | None, code: int) -> Any:
    return call.make(
        "MetadataResponseTopic",
        error_code=code,
        name=name,
        topic_id=to_uuid(topic_id),
        partitions=(),
        topic_authorized_operations=_operations(request),
    )


def _known(request: Any, call: Call, topic: TopicDescription) -> Any:
    return call.make(
        "MetadataResponseTopic",
        error_code=0,
        name=topic.name,
        topic_id=to_uuid(topic.topic_id),
        is_internal=topic.internal,
        partitions=(_partition(call, partition) for partition in topic.partitions),
        topic_authorized_operations=_operations(request),
    )


def _partition(call: Call, partition: PartitionDescription) -> Any:
    return call.make(
        "MetadataResponsePartition",
        error_code=code_of(partition.error),
        partition_index=partition.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(partition.isr),
        offline_replicas=tuple(partition.offline),
    )
