"""UnregisterBroker, key 64, version 0 (KIP-500): removes a broker that is gone for good, never the one that answers."""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import InvalidRequest


def serve(request: Any, call: Call) -> Fields:
    broker_id = request.broker_id
    if broker_id in {broker.node_id for broker in call.core.topics.cluster().brokers}:
        raise InvalidRequest(f"Broker ID {broker_id} is a running broker of this cluster; stop it instead")
    message = f"Broker ID {broker_id} is not currently registered"
    return refuse(request, call, ErrorCode.BROKER_ID_NOT_REGISTERED, message)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message}
