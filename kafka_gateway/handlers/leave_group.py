"""LeaveGroup, key 13, versions 0 to 5: members leave. Below v3 there is one, and its error is the whole answer's."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import LeaveGroup, LeavingMember, Left
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields


def serve(request: Any, call: Call) -> Delayed:
    if call.messages.version < 3:
        members = [LeavingMember(request.member_id)]
    else:
        members = [
            LeavingMember(each.member_id, each.group_instance_id, getattr(each, "reason", None))
            for each in request.members
        ]
    leaving = LeaveGroup(request.group_id, members)
    return Delayed(call.core.groups.leave(leaving, call.caller), lambda left: _fields(left, call))


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
