"""UnregisterBroker, key 64, version 0 (KIP-500): removes a stopped broker without partitions from the cluster.

Kafka also removes a broker with partitions. Here its partitions would be lost, because a partition has one replica.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.message_handler import Call, Fields


async def serve(request: Any, call: Call) -> Fields:
    await call.core.topics.unregister_broker(request.broker_id)
    return refuse(request, call, 0, None)


def refuse(request: Any, call: Call, code: int, message: str | None) -> Fields:
    return {"error_code": code, "error_message": message}
