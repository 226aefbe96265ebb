"""PushTelemetry, key 72, version 0 (KIP-714): passes a client's metrics to the reporters in `metric.reporters`."""

from __future__ import annotations

from typing import Any

from kafka_gateway.handlers.get_telemetry_subscriptions import subscriptions_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.telemetry import RESERVED, TelemetryClient


async def serve(request: Any, call: Call) -> Fields:
    given, telemetry = request.client_instance_id, call.options.telemetry
    caller = TelemetryClient(RESERVED[0] if given is None else given.bytes, call.client_id, call.client)
    subscriptions, now_ms = await subscriptions_of(call), call.options.clock.monotonic() * 1000
    if caller.instance_id not in RESERVED:
        await telemetry.know(caller, subscriptions, now_ms, call.turn)
    code = await telemetry.push(
        caller,
        subscriptions,
        request.subscription_id,
        request.compression_type,
        bytes(request.metrics),
        terminating=bool(request.terminating),
        now_ms=now_ms,
    )
    return {"error_code": code}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code}
