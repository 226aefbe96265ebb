"""FindCoordinator, key 10, versions 0 to 6: there is no coordinator, since neither groups nor transactions are served.

Advertised to librdkafka only (`api_versions.py`). Whoever asks for a group's is told to ask later (it may hold a group's
name and assign partitions by itself). A transactional id is refused as one that nobody may use: upon other answers that were
tried librdkafka asks again until its time is out.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

_GROUP, _TRANSACTION = 0, 1
_NOWHERE: Fields = {"node_id": -1, "host": "", "port": -1}
NO_GROUPS = "consumer groups are not served; name partitions with assign()"
NO_TRANSACTIONS = "transactions are not served; use an idempotent producer without a transactional id"


def serve(request: Any, call: Call) -> Fields:
    kind = getattr(request, "key_type", _GROUP)
    if kind == _TRANSACTION:
        return refuse(request, call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    return refuse(request, call, ErrorCode.COORDINATOR_NOT_AVAILABLE, NO_GROUPS)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    error = {"error_code": code, "error_message": message, **_NOWHERE}
    if call.messages.version < 4:
        return error
    return {"coordinators": (call.make("Coordinator", key=key, **error) for key in request.coordinator_keys)}
