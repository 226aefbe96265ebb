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
from kafka_gateway.messages import to_uuid
from storage_tiers.errors import LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicId

#: Authorized operations when they are not asked for.
NOT_ASKED = -2147483648


async def serve(request: Any, call: Call) -> Fields:
    topics = call.core.topics
    if request.topics is None or (call.messages.version == 0 and not request.topics):
        return _fields(call, [_topic(call, described) for described in topics.describe()])
    ids = [getattr(topic, "topic_id", None) for topic in request.topics]
    by_id = list(dict.fromkeys(TopicId(topic_id.bytes) for topic_id in ids if topic_id is not None))
    by_name = list(dict.fromkeys(t.name for t, topic_id in zip(request.topics, ids, strict=True) if topic_id is None))
    if not by_name and not by_id:
        return _fields(call, [])
    known = topics.describe(by_name, by_id)
    missing = [n for n, t in zip(by_name, known, strict=False) if isinstance(t, UnknownTopicOrPartition)]
    if missing and getattr(request, "allow_auto_topic_creation", True):
        await topics.auto_create(missing)
        known = topics.describe(by_name, by_id)
    rows = [_topic(call, described, name=name) for described, name in zip(known, by_name, strict=False)]
    rows += [_topic(call, described, topic_id=i) for described, i in zip(known[len(by_name) :], by_id, strict=True)]
    return _fields(call, rows)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    rows = [
        call.make("MetadataResponseTopic", error_code=code, name=t.name, topic_id=None, partitions=())
        for t in request.topics or ()
    ]
    return _fields(call, rows, code)


def _fields(call: Call, rows: Sequence[Any], code: int = 0) -> Fields:
    cluster = call.core.topics.cluster()
    brokers = tuple(
        call.make("MetadataResponseBroker", node_id=b.node_id, host=b.host, port=b.port, rack=b.rack)
        for b in cluster.brokers
    )
    return {
        "error_code": code,
        "brokers": brokers,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "cluster_authorized_operations": NOT_ASKED,
        "topics": tuple(rows),
    }


def _topic(
    call: Call, described: TopicDescription | LogError, *, name: str | None = None, topic_id: TopicId | None = None
) -> Any:
    if isinstance(described, LogError):
        return call.make(
            "MetadataResponseTopic",
            error_code=code_of(described),
            name=name,
            topic_id=to_uuid(topic_id),
            partitions=(),
        )
    return call.make(
        "MetadataResponseTopic",
        error_code=0,
        name=described.name,
        topic_id=to_uuid(described.topic_id),
        is_internal=described.internal,
        partitions=tuple(_partition(call, partition) for partition in described.partitions),
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
