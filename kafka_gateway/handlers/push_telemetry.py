"""PushTelemetry, key 72, version 0 (KIP-714): metrics of a client, for the reporters in `metric.reporters`."""

from __future__ import annotations

from typing import Any

from kafka_gateway.handlers.get_telemetry_subscriptions import subscriptions_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.telemetry import RESERVED, TelemetryClient


async def serve(request: Any, call: Call) -> Fields:
    given = request.client_instance_id
    code = await call.options.telemetry.push(
        TelemetryClient(RESERVED[0] if given is None else given.bytes, call.client_id, call.client),
        await subscriptions_of(call),
        request.subscription_id,
        request.compression_type,
        bytes(request.metrics),
        terminating=bool(request.terminating),
        now_ms=call.options.clock.monotonic() * 1000,
    )
    return {"error_code": code}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code}
