"""Metadata, key 3, versions 0 to 13.

Topics are asked for by name (v12: or id), all of them with null (v0: with an empty list). Unknown names are created
first where `auto.create.topics.enable` and the request (v4) allow it. v13 can carry an error for the whole answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_api.contract.topics import PartitionDescription, TopicDescription
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import from_uuid, to_uuid
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicId

#: Authorized operations when they are not asked for; and when they are, what everybody may do on a node without an
#: authorizer: one bit per AclOperation that applies to a topic or to the cluster.
NOT_ASKED = -2147483648
ALL_TOPIC_OPERATIONS = 3576
ALL_CLUSTER_OPERATIONS = 8096


async def serve(request: Any, call: Call) -> Fields:
    topics = call.core.topics
    version = call.messages.version
    if request.topics is None or (version == 0 and not request.topics):
        rows = [_known(request, call, t) for t in topics.describe() if isinstance(t, TopicDescription)]
        return _fields(request, call, rows)
    names, ids = _wanted(request, version)
    if not names and not ids:
        return _fields(request, call, [])
    found = topics.describe(names, ids)
    missing = [n for n, topic in zip(names, found, strict=False) if isinstance(topic, UnknownTopicOrPartition)]
    if missing and getattr(request, "allow_auto_topic_creation", True):
        await topics.auto_create(missing)
        found = topics.describe(names, ids)
    asked: list[tuple[str | None, TopicId | None]] = [(name, None) for name in names]
    asked += [(None, topic_id) for topic_id in ids]
    rows = [
        _unknown(request, call, name, topic_id, code_of(topic))
        if isinstance(topic, LogError)
        else _known(request, call, topic)
        for topic, (name, topic_id) in zip(found, asked, strict=True)
    ]
    return _fields(request, call, rows)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    rows = [
        _unknown(request, call, topic.name or "", from_uuid(getattr(topic, "topic_id", None)), code)
        for topic in request.topics or ()
    ]
    nothing = {"brokers": (), "cluster_id": None, "controller_id": -1, "cluster_authorized_operations": NOT_ASKED}
    return {"error_code": code, "topics": tuple(rows), **nothing}


def _wanted(request: Any, version: int) -> tuple[list[str], list[TopicId]]:
    """Names, or ids, each once, in order; names do not count beside an id. Raises InvalidRequest where one has neither."""
    names: dict[str, None] = {}
    ids: dict[TopicId, None] = {}
    for topic in request.topics:
        topic_id = getattr(topic, "topic_id", None)
        if topic_id is not None and version < 12:
            raise InvalidRequest(f"topic ids are not served in Metadata {version}; ask with version 12")
        if topic_id is not None:
            ids[TopicId(topic_id.bytes)] = None
        elif topic.name is not None:
            names[topic.name] = None
        else:
            raise InvalidRequest("a topic needs a name or an id")
    return ([], list(ids)) if ids else (list(names), [])


def _fields(request: Any, call: Call, rows: Sequence[Any]) -> Fields:
    cluster = call.core.topics.cluster()
    brokers = tuple(
        call.make("MetadataResponseBroker", node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
        for b in cluster.brokers
    )
    asked = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "error_code": 0,
        "brokers": brokers,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS if asked else NOT_ASKED,
        "topics": tuple(rows),
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
        partitions=tuple(_partition(call, partition) for partition in topic.partitions),
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
