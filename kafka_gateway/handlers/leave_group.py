"""LeaveGroup, key 13, versions 0 to 5: members leave. Below v3 a request names one member, and the answer has its error."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from grpc_api.contract.groups import LeaveGroup, LeavingMember, Left
from grpc_api.contract.request_parts import AT_ONCE
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if call.messages.version < 3:
        members = [LeavingMember(request.member_id)]
    elif len(request.members) > AT_ONCE:
        return _long(request, call)
    else:
        members = [_member(each) for each in request.members]
    leaving = LeaveGroup(request.group_id, members)
    return Delayed(call.core.groups.leave(leaving, call.caller), lambda left: _fields(left, call))


async def _long(request: Any, call: Call) -> Fields:
    """Gives the coordinator all members at once, so that only one rebalance follows."""
    leaving = LeaveGroup(request.group_id, [_member(each) async for each in call.each(request.members)])
    return _fields(await call.waiting(call.core.groups.leave(leaving, call.caller)), call)


def _member(row: Any) -> LeavingMember:
    return LeavingMember(row.member_id, row.group_instance_id, getattr(row, "reason", None))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "members": ()}


def _fields(left: Left, call: Call) -> Fields:
    error = left.error
    if call.messages.version < 3:
        return {"error_code": code_of(error or next((each.error for each in left.members), None))}
    return {
        "error_code": code_of(error),
        "members": (
            call.make(
                "MemberResponse",
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=code_of(each.error),
            )
            for each in left.members
        ),
    }
