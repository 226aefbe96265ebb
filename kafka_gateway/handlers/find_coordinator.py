"""FindCoordinator, key 10, versions 0 to 6: the broker that coordinates a group. v4 asks for many keys at once.

The internal topic is created by the first request, which is told to ask again. A transactional id is refused as unauthorized,
since transactions are not served: after any other answer that was tried, librdkafka retries until its timeout.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import ErrorCode, code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import CoordinatorNotAvailable, InvalidRequest, LogError

_GROUP, _TRANSACTION = 0, 1
_NOWHERE: Fields = {"node_id": -1, "host": "", "port": -1}
#: What Kafka writes as the message of no error, where there is one key.
_NO_ERROR = "NONE"
NO_TRANSACTIONS = "transactions are not served; use an idempotent producer without a transactional id"


async def serve(request: Any, call: Call) -> Fields:
    kind = getattr(request, "key_type", _GROUP)
    if kind == _TRANSACTION:
        return refuse(request, call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if kind != _GROUP:
        raise InvalidRequest(f"coordinators of type {kind} are not served; ask for 0 (group) or 1 (transaction)")
    if call.messages.version < 4:
        return await _coordinator(request.key, call, _NO_ERROR)
    return {
        "coordinators": [
            call.make("Coordinator", key=key, **await _coordinator(key, call, ""))
            async for key in call.each(request.coordinator_keys)
        ]
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    error = {"error_code": code, "error_message": message, **_NOWHERE}
    if call.messages.version < 4:
        return error
    return {"coordinators": (call.make("Coordinator", key=key, **error) for key in request.coordinator_keys)}


async def _coordinator(group: str, call: Call, no_error: str) -> Fields:
    try:
        node_id = await call.core.groups.coordinator(group)
        for broker, at in call.reachable(call.core.topics.cluster()):
            if broker.node_id == node_id:
                return {
                    "error_code": 0,
                    "error_message": no_error,
                    "node_id": node_id,
                    "host": at.host,
                    "port": at.port,
                }
        raise CoordinatorNotAvailable(f"broker {node_id} has no listener {call.client.listener}")
    except LogError as error:
        return {"error_code": code_of(error), "error_message": message_of(error), **_NOWHERE}
