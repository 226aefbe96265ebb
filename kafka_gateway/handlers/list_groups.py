"""ListGroups, key 16, versions 0 to 5: the groups that this broker coordinates. v4 selects states (KIP-518), v5 types."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import GroupsListed, ListGroups
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields


async def serve(request: Any, call: Call) -> Fields:
    wanted = ListGroups(
        frozenset(getattr(request, "states_filter", ())), frozenset(getattr(request, "types_filter", ()))
    )
    return _fields(await call.core.groups.list_groups(wanted, call.caller), call)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "groups": ()}


def _fields(listed: GroupsListed, call: Call) -> Fields:
    return {
        "error_code": code_of(listed.error),
        "groups": (
            call.make(
                "ListedGroup",
                group_id=each.group,
                protocol_type=each.protocol_type,
                group_state=each.state,
                group_type=each.type,
            )
            for each in listed.groups
        ),
    }
