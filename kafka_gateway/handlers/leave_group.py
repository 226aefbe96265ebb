"""LeaveGroup, key 13, versions 0 to 5: members leave. Below v3 there is one, and its error is the whole answer's."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from grpc_api.contract.groups import LeaveGroup, LeavingMember, Left, LeftMember
from grpc_api.contract.request_parts import AT_ONCE
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Delayed, Fields


def serve(request: Any, call: Call) -> Delayed | Coroutine[Any, Any, Fields]:
    if call.messages.version < 3:
        members = [LeavingMember(request.member_id)]
    else:
        if len(request.members) > AT_ONCE:
            return _in_parts(request, call)
        members = _members(request.members)
    leaving = LeaveGroup(request.group_id, members)
    return Delayed(call.core.groups.leave(leaving, call.caller), lambda left: _fields(left, call))


async def _in_parts(request: Any, call: Call) -> Fields:
    """Members leave AT_ONCE at a time; the group waits for the others of its rebalance meanwhile, as it would for all."""
    members: list[LeftMember] = []
    for first in range(0, len(request.members), AT_ONCE):
        leaving = LeaveGroup(request.group_id, _members(request.members[first : first + AT_ONCE]))
        left = await call.waiting(call.core.groups.leave(leaving, call.caller))
        if left.error is not None:
            return _fields(left, call)
        members += left.members
        await call.turn.rest_if_over()
    return _fields(Left(None, members), call)


def _members(rows: Any) -> list[LeavingMember]:
    return [LeavingMember(each.member_id, each.group_instance_id, getattr(each, "reason", None)) for each in rows]


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
