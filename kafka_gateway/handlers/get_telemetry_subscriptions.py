"""GetTelemetrySubscriptions, key 71, version 0 (KIP-714): which metrics a client must push, and how often.

ApiVersions advertises it only if the node collects clients' metrics, but it is always answered, as in Kafka. Subscriptions
are the configs of the resource type "client metrics".
"""

from __future__ import annotations

import datetime
from typing import Any

from grpc_api.contract.topics import Resource, ResourceKind
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import to_uuid
from kafka_gateway.telemetry import ACCEPTED_CODECS, Subscription, TelemetryClient
from storage_tiers.types import TopicId


async def serve(request: Any, call: Call) -> Fields:
    telemetry = call.options.telemetry
    given = request.client_instance_id
    instance_id = call.options.rng.token(16) if given is None else given.bytes
    subscriptions = await subscriptions_of(call)
    caller = TelemetryClient(instance_id, call.client_id, call.client)
    now_ms = call.options.clock.monotonic() * 1000
    await telemetry.know(caller, subscriptions, now_ms, call.turn)
    subscribed = telemetry.subscribe(caller, subscriptions, now_ms)
    if subscribed is None:
        return refuse(request, call, ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")
    return {
        "error_code": 0,
        "client_instance_id": to_uuid(TopicId(instance_id)),
        "subscription_id": subscribed.subscription_id,
        "accepted_compression_types": tuple(int(codec) for codec in ACCEPTED_CODECS),
        "push_interval": datetime.timedelta(milliseconds=subscribed.interval_ms),
        "telemetry_max_bytes": telemetry.max_bytes,
        "delta_temporality": True,
        "requested_metrics": tuple(subscribed.metrics),
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "error_code": code,
        "client_instance_id": None,
        "subscription_id": 0,
        "push_interval": datetime.timedelta(0),
        "telemetry_max_bytes": 0,
        "delta_temporality": False,
    }


async def subscriptions_of(call: Call) -> list[Subscription]:
    found = []
    for name in call.core.node.client_metrics():
        resource = Resource(ResourceKind.CLIENT_METRICS, name)
        values = {entry.name: entry.value or "" for entry in await call.core.configs.describe_configs(resource)}
        pairs = (item.partition("=") for item in _items(values["match"]))
        match = [(what.strip(), pattern.strip()) for what, _, pattern in pairs]
        found.append(Subscription(_items(values["metrics"]), int(values["interval.ms"]), match))
    return found


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
