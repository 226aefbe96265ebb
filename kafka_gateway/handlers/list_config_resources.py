"""ListConfigResources, key 74, versions 0 to 1 (KIP-1142): the resources that DescribeConfigs describes.

v0, formerly ListClientMetricsResources, lists only client metrics subscriptions. v1 lists the requested types, or all types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_api.contract.topics import Resource, ResourceKind, TopicDescription
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

#: In the order of Kafka's answers.
_KINDS = (
    ResourceKind.GROUP,
    ResourceKind.CLIENT_METRICS,
    ResourceKind.BROKER_LOGGER,
    ResourceKind.BROKER,
    ResourceKind.TOPIC,
)


def serve(request: Any, call: Call) -> Fields:
    asked = getattr(request, "resource_types", None)
    kinds = {ResourceKind.CLIENT_METRICS} if asked is None else set(asked or _KINDS)
    if not kinds <= set(_KINDS):
        return refuse(request, call, ErrorCode.UNSUPPORTED_VERSION, "")
    rows = (
        call.make("ConfigResource", resource_name=found.name, resource_type=int(found.kind))
        for kind in _KINDS
        if kind in kinds
        for found in _resources(call, kind)
    )
    return {"error_code": 0, "config_resources": rows}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "config_resources": ()}


def _resources(call: Call, kind: ResourceKind) -> Iterable[Resource]:
    topics = call.core.topics
    if kind is ResourceKind.TOPIC:
        return (Resource(kind, topic.name) for topic in topics.describe() if isinstance(topic, TopicDescription))
    if kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER):
        return [Resource(kind, str(broker.node_id)) for broker in topics.cluster().brokers]
    if kind is ResourceKind.CLIENT_METRICS:
        return [Resource(kind, name) for name in call.core.node.client_metrics()]
    return []  # groups have no configs
