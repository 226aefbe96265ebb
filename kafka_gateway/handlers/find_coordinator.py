"""FindCoordinator, key 10, versions 0 to 6: the broker that coordinates a group or a transactional id. v4 can name many keys.

The first request fails with a retriable error while the internal topic is created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.message_handler import Call, Fields, ended
from storage_tiers.errors import InvalidRequest, LogError

#: Finds the broker that coordinates a key.
Find = Callable[[str, Caller], Awaitable[int]]

_GROUP, _TRANSACTION = 0, 1
_NOWHERE: Fields = {"node_id": -1, "host": "", "port": -1}
#: In versions with a single key, a successful answer has this error message, as in Kafka.
_NO_ERROR = "NONE"


async def serve(request: Any, call: Call) -> Fields:
    kind = getattr(request, "key_type", _GROUP)
    if kind == _GROUP:
        find: Find = call.core.groups.coordinator
    elif kind == _TRANSACTION:
        find = call.core.transactions.coordinator
    else:
        raise InvalidRequest(f"coordinators of type {kind} are not served; ask for 0 (group) or 1 (transaction)")
    if call.messages.version < 4:
        return _fields(await ended(find(request.key, call.caller)), call, _NO_ERROR)
    keys = request.coordinator_keys
    # Rows are made while they are written, because freeing thousands of them together would block the event loop.
    found = [await ended(find(key, call.caller)) async for key in call.each(keys)]
    return {
        "coordinators": (
            call.make("Coordinator", key=key, **_fields(each, call, "")) for key, each in zip(keys, found, strict=True)
        )
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    error = {"error_code": code, "error_message": message, **_NOWHERE}
    if call.messages.version < 4:
        return error
    return {"coordinators": (call.make("Coordinator", key=key, **error) for key in request.coordinator_keys)}


def _fields(found: int | Exception, call: Call, no_error: str) -> Fields:
    """The fields of the broker that was found, or of the error."""
    if isinstance(found, int):
        for broker, at in call.reachable(call.core.topics.cluster()):
            if broker.node_id == found:
                return {"error_code": 0, "error_message": no_error, "node_id": found, "host": at.host, "port": at.port}
        found = CoordinatorNotAvailable(f"broker {found} has no listener {call.client.listener}")
    if not isinstance(found, LogError):
        raise found  # a defect: the raise logs it and refuses the request
    return {"error_code": code_of(found), "error_message": message_of(found), **_NOWHERE}
